package registry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// formatVersion is the version of records. A version whose records an earlier one must not pass over has a higher one.
const formatVersion = 1

// The keys of records: bus/NAME, sub/BUS/NAME, and two that stand alone.
const (
	counterKey = "counter" // holds the highest revision, so that it does not go back when tombstones remove deletions
	fenceKey   = "fence"   // what a writer stores first, and waits for as a reader: all that was written before it is read then
)

func busKey(name string) string             { return "bus/" + name }
func subscriberKey(bus, name string) string { return "sub/" + bus + "/" + name }

// record is the value of a message of the registry's topic. One record is one change: it is stored whole or not at all.
type record struct {
	Format   int   `json:"format"`
	Revision int64 `json:"revision"`
	// Change names the attempt that wrote the record, so that the writer finds it when Pulsar did not answer.
	Change string    `json:"change"`
	Time   time.Time `json:"time"`
	By     string    `json:"by,omitempty"` // the instance
	// Deleted: the object is no more. Nothing else of it is left.
	Deleted bool `json:"deleted,omitempty"`
	// Object is a Bus or a Subscriber whose secrets are hidden ones. They are in Secrets, or in Sealed, by pointer.
	Object  json.RawMessage   `json:"object,omitempty"`
	Secrets map[string]string `json:"secrets,omitempty"`
	Sealed  *sealed           `json:"sealed,omitempty"`
	// Former is what had the key before and whose topics are still to be deleted: the UIDs of subscribers, or "" for a bus.
	Former []string `json:"former,omitempty"`
	// Job is what [Store.ChangeJob] keeps for the subscriber.
	Job json.RawMessage `json:"job,omitempty"`
}

// The properties of a record's message say what its value says, for those who cannot read that.
const (
	formatProperty   = "format"
	revisionProperty = "revision"
)

// message makes what is published.
func (r *record) message(key string) (*messaging.Record, error) {
	payload, err := encode(r)
	if err != nil {
		return nil, err
	}
	return &messaging.Record{Key: key, Payload: payload, Properties: map[string]string{
		formatProperty: strconv.Itoa(r.Format), revisionProperty: strconv.FormatInt(r.Revision, 10),
	}}, nil
}

// put sets the record's object, a pointer to a Bus or a Subscriber.
func (r *record) put(key string, object any, keys *Keys) error {
	plain, secrets, err := split(object)
	if err != nil {
		return err
	}
	size := len(plain)
	for at, s := range secrets {
		size += len(at) + len(s)
	}
	if size > MaxObjectBytes {
		return &Invalid{Faults: []Fault{{Problem: fmt.Sprintf("must have at most %d bytes, got %d", MaxObjectBytes, size)}}}
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

// get reads the record's object into one.
func (r *record) get(key string, object any, keys *Keys) error {
	secrets := r.Secrets
	if r.Sealed != nil {
		var err error
		if secrets, err = keys.open(r.Sealed, r.place(key)); err != nil {
			return err
		}
	}
	return join(r.Object, secrets, object)
}

// encode makes JSON as it was written: json.Marshal escapes <, > and &, in patterns, too.
func encode(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// place is what encrypted secrets belong to.
func (r *record) place(key string) string { return key + "\n" + strconv.FormatInt(r.Revision, 10) }

// errNewer: a record is of a newer format.
var errNewer = errors.New("its format is newer than this version of Eventbridge")

// readRecord reads a message's value. What can be told about a record that cannot be read is in it all the same.
func readRecord(d *messaging.Delivery) (record, error) {
	var r record
	r.Format, _ = strconv.Atoi(d.Properties[formatProperty])
	r.Revision, _ = strconv.ParseInt(d.Properties[revisionProperty], 10, 64)
	if r.Format > formatVersion {
		return r, errNewer
	}
	var whole record
	if err := json.Unmarshal(d.Payload, &whole); err != nil {
		return r, fmt.Errorf("it is not a record of the registry: %w", err)
	}
	switch {
	case whole.Format > formatVersion:
		return r, errNewer
	case whole.Format < 1:
		return r, errors.New("it is not a record of the registry: it has no format")
	}
	return whole, nil
}

// cutKey takes the key of a bus (name is empty) or a subscriber apart.
func cutKey(key string) (bus, name string, ok bool) {
	parts := strings.Split(key, "/")
	switch {
	case len(parts) == 2 && parts[0] == "bus" && validName(parts[1]):
		return parts[1], "", true
	case len(parts) == 3 && parts[0] == "sub" && validName(parts[1]) && validName(parts[2]):
		return parts[1], parts[2], true
	}
	return "", "", false
}
