// Package template makes the body of a delivery from a template and values of the event. It
// imports event and registry/model.
package template

import (
	"cmp"
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

// Compile makes a function from a transformation. If the transformation is not valid, the error is
// a [*model.Invalid] whose pointers are from the transformation; problems in the text say where.
func Compile(t *model.Transform) (Func, error) {
	var faults model.FaultList
	contentType := cmp.Or(t.ContentType, jsonType)
	media, _, err := mime.ParseMediaType(contentType)
	if err != nil || !strings.Contains(media, "/") || strings.ContainsAny(contentType, "\r\n") || len(contentType) > 255 {
		faults.Add("/content_type", "must be a media type such as application/json or text/plain; charset=utf-8, got %q", contentType)
	}
	isJSON := media == jsonType || media == "text/json" || strings.HasSuffix(media, "+json")
	compiled, more := compileTemplate(t.Paths, t.Template, isJSON)
	if err := append(faults, more...).Err(); err != nil {
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
