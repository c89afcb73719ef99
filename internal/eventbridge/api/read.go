package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/httpserver"
)

// bodiesBytes limits the memory for the bodies of all requests in flight. A body is counted copies
// times: decoding it takes more memory than its bytes.
const (
	bodiesBytes = 64 << 20
	copies      = 8
)

// read reads a request's body, JSON of at most most bytes. bounded releases the memory at the end
// of the request.
func (a *API) read(w http.ResponseWriter, r *http.Request, most int64) ([]byte, error) {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "application/json" && !strings.HasSuffix(kind, "+json") {
		return nil, refused(http.StatusUnsupportedMediaType, "Content-Type must be application/json")
	}
	if e := r.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return nil, refused(http.StatusUnsupportedMediaType, "Content-Encoding must be identity")
	}
	held := holdsOf(r).body
	body, err := httpserver.ReadBody(w, r, nil, held, httpserver.BodyLimits{Bytes: most, Reason: "body_bytes", Timeout: answerWithin})
	if err != nil {
		return nil, err
	}
	httpserver.ClearReadDeadline(w)
	return body, held.Set(int64(copies * len(body)))
}

// readObject reads a bus or a subscriber.
func (a *API) readObject(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	return a.read(w, r, model.MaxObjectBytes+1) // one byte more, so that the decoder reports the fault
}

// optionsBytes bounds the options of a job.
const optionsBytes = 4 << 10

// readOptions reads the options of a job into v. No body means no options.
func (a *API) readOptions(w http.ResponseWriter, r *http.Request, v any) error {
	if r.URL.RawQuery != "" { // otherwise a filter there would be ignored
		return refused(http.StatusBadRequest, `this request takes no parameters: what is wanted stands in its body, as in {"dry_run": true}`)
	}
	if r.ContentLength == 0 && r.Header.Get("Content-Type") == "" {
		return nil
	}
	body, err := a.read(w, r, optionsBytes)
	if err != nil {
		return err
	}
	if err := strict(body, v); err != nil {
		return err
	}
	return refuseEmpty(body)
}

// refuseEmpty refuses options without a value: an empty filter would select everything.
func refuseEmpty(body []byte) error {
	var given map[string]json.RawMessage
	if json.Unmarshal(body, &given) != nil || given == nil {
		return refused(http.StatusBadRequest, "the body is not valid for this request: it must be a JSON object")
	}
	for key, value := range given {
		var moment time.Time
		isZero := json.Unmarshal(value, &moment) == nil && moment.IsZero() // null, too
		if isZero || string(value) == `""` {
			return refused(http.StatusBadRequest, key+noValue)
		}
	}
	return nil
}

// noValue follows the key of an option without a value.
const noValue = " must have a value, or be left out"

// inPlainWords says what a decoder found wrong with the body for v, a struct.
func inPlainWords(err error, v any) string {
	const noTime, noKey = "Time.UnmarshalJSON: ", "json: unknown field "
	var wrong *json.UnmarshalTypeError
	var moment *time.ParseError
	switch text := err.Error(); {
	case errors.Is(err, io.EOF):
		return "it is empty"
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "the JSON ends too early"
	case errors.As(err, &moment), strings.HasPrefix(text, noTime):
		return "a time must be a text such as 2026-01-02T15:04:05Z"
	case errors.As(err, &wrong) && wrong.Field == "":
		return "it must be a JSON object"
	case errors.As(err, &wrong):
		return fmt.Sprintf("%s must be %s, got %.40s", wrong.Field, kind(wrong.Type), wrong.Value)
	case strings.HasPrefix(text, noKey):
		var keys []string
		for _, field := range reflect.VisibleFields(reflect.TypeOf(v).Elem()) {
			key, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			keys = append(keys, key)
		}
		return fmt.Sprintf("there is no such key: %.200s; the keys here are %s", strings.TrimPrefix(text, noKey), strings.Join(keys, ", "))
	default:
		return text
	}
}

// kind says in words which type an option must have.
func kind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Float64:
		return "a number"
	case reflect.Int:
		return "a whole number"
	case reflect.String:
		return "a text"
	default:
		return "an object"
	}
}

// strict reads one JSON value without unknown keys.
func strict(body []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return refused(http.StatusBadRequest, "the body is not valid for this request: "+inPlainWords(err, v))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return refused(http.StatusBadRequest, "the body is more than one JSON value")
	}
	return nil
}
