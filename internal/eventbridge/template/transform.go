// Package template makes the body of a delivery from a text with values of the event.
package template

import (
	"errors"
	"fmt"
	"mime"
	"strings"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
)

// MaxBytes bounds the result for one event. A larger result is an error.
const MaxBytes = 1 << 20

const jsonType = "application/json"

// A Func makes the body of a delivery and its content type. The body is not nil and has at most
// MaxBytes. An error is about this event: the same event would have it again. A Func is safe for
// concurrent use.
type Func func(e event.Event) (body []byte, contentType string, err error)

// Fault is something wrong with a transformation.
type Fault struct {
	// Pointer is a JSON Pointer from the transformation, such as /template.
	Pointer string
	// Problem is for people, and says where in the text it is.
	Problem string
}

// Error returns both.
func (f *Fault) Error() string { return f.Pointer + ": " + f.Problem }

// Compile makes a function from a transformation. Its error joins a *Fault for each thing that is
// wrong.
func Compile(t *model.Transform) (Func, error) {
	var errs []error
	fault := func(pointer, format string, args ...any) {
		errs = append(errs, &Fault{Pointer: pointer, Problem: fmt.Sprintf(format, args...)})
	}
	contentType := t.ContentType
	if contentType == "" {
		contentType = jsonType
	}
	media, _, err := mime.ParseMediaType(contentType)
	if err != nil || !strings.Contains(media, "/") || strings.ContainsAny(contentType, "\r\n") || len(contentType) > 255 {
		fault("/content_type", "must be a media type such as application/json or text/plain; charset=utf-8, got %q", contentType)
	}
	asJSON := media == jsonType || media == "text/json" || strings.HasSuffix(media, "+json")
	compiled, faults := compileTemplate(t.Paths, t.Template, asJSON)
	errs = append(errs, faults...)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return func(e event.Event) ([]byte, string, error) {
		body, err := compiled.body(e)
		if err != nil {
			return nil, "", fmt.Errorf("transform: %w", err)
		}
		return body, contentType, nil
	}, nil
}

// errTooLarge is the error of a body of more than MaxBytes.
func errTooLarge() error {
	return fmt.Errorf("the transformed event has more than %d bytes", MaxBytes)
}
