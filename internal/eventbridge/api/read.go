package api

import (
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/internal/httpserver"
)

// read reads a request's body, JSON of at most most bytes.
func read(w http.ResponseWriter, r *http.Request, most int64) ([]byte, error) {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "application/json" && !strings.HasSuffix(kind, "+json") {
		return nil, refused(http.StatusUnsupportedMediaType, "Content-Type must be application/json")
	}
	if e := r.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return nil, refused(http.StatusUnsupportedMediaType, "Content-Encoding must be identity")
	}
	body, err := httpserver.ReadBody(w, r, nil, nil, httpserver.BodyLimits{Bytes: most, Reason: "body_bytes", Timeout: answerWithin})
	httpserver.ClearReadDeadline(w)
	return body, err
}

// readObject reads a bus or a subscriber, and the condition under which it is to be put.
func (*API) readObject(w http.ResponseWriter, r *http.Request) (c store.Condition, body []byte, err error) {
	if c, err = condition(r); err != nil {
		return c, nil, err
	}
	body, err = read(w, r, model.MaxObjectBytes+1) // one byte more, so that the decoder reports the fault
	return c, body, err
}

// optionsBytes bounds the options of a job.
const optionsBytes = 4 << 10

// bodyOptions returns the options of a job from the body. No body: no options.
func bodyOptions(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.URL.RawQuery != "" { // otherwise a filter there would be ignored
		return nil, refused(http.StatusBadRequest, `this request takes no parameters: give the options in its body, as in {"dry_run": true}`)
	}
	if r.ContentLength == 0 && r.Header.Get("Content-Type") == "" {
		return []byte("{}"), nil
	}
	return read(w, r, optionsBytes)
}

// queryOptions returns the options of a job from the query, as JSON. A proxy may drop the body of a
// DELETE, and without a filter all dead letters would be removed.
func queryOptions(_ http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.ContentLength != 0 { // ignoring a filter in the body would remove all dead letters
		return nil, refused(http.StatusBadRequest, "this request must not have a body: give the options in the query, as in ?type=stock.low&dry_run=true")
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, refused(http.StatusBadRequest, "the query cannot be read: "+err.Error())
	}
	options := make(map[string]any, len(query))
	for key, values := range query {
		if len(values) > 1 {
			return nil, refused(http.StatusBadRequest, key+" occurs twice")
		}
		options[key] = values[0]
		if bare := json.RawMessage(values[0]); json.Valid(bare) && (key == "rate" || key == "max" || key == "dry_run") {
			options[key] = bare
		}
	}
	return json.Marshal(options)
}

// decodeOptions decodes the options of a job into o, a pointer to a struct. An option without a
// value is refused: an empty filter would select everything.
func decodeOptions(text []byte, o any) error {
	var given map[string]json.RawMessage
	_ = json.Unmarshal(text, &given) // decode reports what is wrong
	for key, value := range given {
		var moment time.Time
		if string(value) == `""` || json.Unmarshal(value, &moment) == nil && moment.IsZero() { // null, too
			return refused(http.StatusBadRequest, key+" must have a value, or be omitted")
		}
	}
	return invalidBody(model.Decode(text, o))
}

// invalidBody returns the answer to a body with faults, nil if there are none.
func invalidBody(faults model.FaultList) error {
	var invalid *model.Invalid
	if !errors.As(faults.Err(), &invalid) {
		return nil
	}
	return &problem{Status: http.StatusBadRequest, Detail: "the body is not valid for this request", Faults: invalid.Faults}
}
