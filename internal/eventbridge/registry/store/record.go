package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// formatVersion is the version of the record format. A version of Eventbridge has a higher one if
// earlier versions must not ignore its records.
const formatVersion = 1

// Records have the keys bus/NAME and sub/BUS/NAME, and these two:
const (
	counterKey = "counter" // holds the highest revision, so that revisions do not go back when tombstones remove deletions
	fenceKey   = "fence"   // a writer stores it first and waits until its own reader has it: everything that was written before is read then
)

func busKey(name string) string             { return "bus/" + name }
func subscriberKey(bus, name string) string { return "sub/" + bus + "/" + name }

// objectKey is the key of a bus or, with a name, of a subscriber.
func objectKey(bus, name string) string {
	if name == "" {
		return busKey(bus)
	}
	return subscriberKey(bus, name)
}

// record is the value of a message of the registry's topic. One record is one change: it is stored
// whole or not at all.
type record struct {
	Format   int   `json:"format"`
	Revision int64 `json:"revision"`
	// Change is the ID of the change that wrote the record. If Pulsar did not answer, the writer
	// finds its record by this ID.
	Change string    `json:"change"`
	Time   time.Time `json:"time"`
	By     string    `json:"by,omitempty"` // the instance that wrote the record
	// Deleted says that the object was deleted: Object is empty.
	Deleted bool `json:"deleted,omitempty"`
	// Object is a Bus or a Subscriber with its secrets hidden. The secrets are in Secrets, or
	// encrypted in Sealed, by JSON pointer.
	Object  json.RawMessage   `json:"object,omitempty"`
	Secrets map[string]string `json:"secrets,omitempty"`
	Sealed  *sealed           `json:"sealed,omitempty"`
	// Former names the objects that had this key before, and whose topics are not deleted yet: the
	// UIDs of subscribers, or "" for a bus.
	Former []string `json:"former,omitempty"`
	// Job is what [Store.ChangeJob] stores for the subscriber.
	Job json.RawMessage `json:"job,omitempty"`
}

// message returns the record as a message of the instance by, with the ID of the change.
func (r *record) message(key, change, by string) (*messaging.Record, error) {
	r.Format, r.Change, r.By = formatVersion, change, by
	payload, err := model.Encode(r)
	return &messaging.Record{Key: key, Payload: payload}, err
}

// put sets the record's object, a pointer to a Bus or a Subscriber.
func (r *record) put(key string, object any, keys *Keys) error {
	plain, secrets, err := model.Split(object)
	if err != nil {
		return err
	}
	size := len(plain)
	for at, s := range secrets {
		size += len(at) + len(s)
	}
	if size > model.MaxObjectBytes {
		return &model.Invalid{Faults: []model.Fault{{Problem: fmt.Sprintf("must have at most %d bytes, got %d", model.MaxObjectBytes, size)}}}
	}
	r.Object = plain
	switch {
	case len(secrets) == 0:
	case keys != nil:
		r.Sealed, err = keys.seal(secrets, r.place(key))
	default:
		r.Secrets = secrets
	}
	return err
}

// get decodes the record's object into object, a pointer to a Bus or a Subscriber.
func (r *record) get(key string, object any, keys *Keys) error {
	secrets := r.Secrets
	if r.Sealed != nil {
		var err error
		if secrets, err = keys.open(r.Sealed, r.place(key)); err != nil {
			return err
		}
	}
	return model.Join(r.Object, secrets, object)
}

// place is the key and the revision that encrypted secrets are bound to.
func (r *record) place(key string) string { return key + "\n" + strconv.FormatInt(r.Revision, 10) }

// errNewer: a record has a newer format.
var errNewer = errors.New("its format is newer than this version of Eventbridge")

// readRecord decodes a message's value. Each format is JSON with the keys format and revision: if
// readRecord cannot decode the rest, the record has only the revision.
func readRecord(d *messaging.Delivery) (r record, err error) {
	err = json.Unmarshal(d.Payload, &r)
	switch {
	case r.Format > formatVersion:
		err = errNewer
	case err != nil:
		err = fmt.Errorf("it is not a record of the registry: %w", err)
	case r.Format < 1:
		err = errors.New("it is not a record of the registry: it has no format")
	}
	if err != nil {
		return record{Revision: r.Revision}, err
	}
	return r, nil
}

// cutKey splits the key of a bus (name is empty then) or of a subscriber.
func cutKey(key string) (bus, name string, ok bool) {
	parts := strings.Split(key, "/")
	switch {
	case len(parts) == 2 && parts[0] == "bus" && model.ValidName(parts[1]):
		return parts[1], "", true
	case len(parts) == 3 && parts[0] == "sub" && model.ValidName(parts[1]) && model.ValidName(parts[2]):
		return parts[1], parts[2], true
	}
	return "", "", false
}
