package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/aviaryhq/aviary/internal/door"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
)

// roomBytes bounds what the bodies of all requests take while they are answered, copies taken for what a body is made of.
const (
	roomBytes = 64 << 20
	copies    = 8
)

// read reads a request's body, JSON of at most most bytes. The memory is given back by the end of the request, see bounded.
func (a *API) read(w http.ResponseWriter, r *http.Request, most int64) ([]byte, error) {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "application/json" && !strings.HasSuffix(kind, "+json") {
		return nil, refused(http.StatusUnsupportedMediaType, "Content-Type must be application/json")
	}
	if e := r.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return nil, refused(http.StatusUnsupportedMediaType, "Content-Encoding must be identity")
	}
	held := holdsOf(r).body
	body, err := door.ReadBody(w, r, nil, held, door.BodyLimits{Bytes: most, Reason: "body_bytes", Timeout: answerWithin})
	if err != nil {
		return nil, err
	}
	door.LiftDeadline(w)
	return body, held.Set(int64(copies * len(body)))
}

// readObject reads a bus or a subscriber.
func (a *API) readObject(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	return a.read(w, r, registry.MaxObjectBytes+1) // one more, for the registry's own fault
}

// optionsBytes bounds the options of a job.
const optionsBytes = 4 << 10

// readOptions reads the options of a job into v. No body is no options.
func (a *API) readOptions(w http.ResponseWriter, r *http.Request, v any) error {
	if r.URL.RawQuery != "" { // a filter that would be passed over
		return refused(http.StatusBadRequest, `this request takes no parameters: what is wanted stands in its body, as in {"dry_run": true}`)
	}
	if r.ContentLength == 0 && r.Header.Get("Content-Type") == "" {
		return nil
	}
	body, err := a.read(w, r, optionsBytes)
	if err != nil {
		return err
	}
	return strict(body, v)
}

// strict reads one JSON value without unknown keys.
func strict(body []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return refused(http.StatusBadRequest, "the body is not what this request takes: "+err.Error())
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return refused(http.StatusBadRequest, "the body is more than one JSON value")
	}
	return nil
}
