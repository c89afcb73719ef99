package api

import (
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
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
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, refused(http.StatusRequestEntityTooLarge, "the body is larger than this request's may be")
	case err != nil:
		return nil, refused(http.StatusBadRequest, "the body cannot be read: "+err.Error())
	}
	return body, nil
}

// readObject reads a bus or a subscriber.
func readObject(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	return read(w, r, registry.MaxObjectBytes+1) // one more, for the registry's own fault
}

// optionsBytes bounds the options of a job.
const optionsBytes = 4 << 10

// readOptions reads the options of a job into v. No body is no options.
func readOptions(w http.ResponseWriter, r *http.Request, v any) error {
	if r.ContentLength == 0 && r.Header.Get("Content-Type") == "" {
		return nil
	}
	body, err := read(w, r, optionsBytes)
	if err != nil {
		return err
	}
	return strict(body, v)
}

// strict reads one JSON value without unknown keys.
func strict(body []byte, v any) error {
	d := json.NewDecoder(strings.NewReader(string(body)))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return refused(http.StatusBadRequest, "the body is not what this request takes: "+err.Error())
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return refused(http.StatusBadRequest, "the body is more than one JSON value")
	}
	return nil
}
