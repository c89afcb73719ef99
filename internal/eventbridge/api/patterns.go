package api

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/eventpattern"
)

// testBytes bounds a pattern together with an event.
const testBytes = eventpattern.MaxPatternBytes + 1<<20

// patternTest is the body of POST /v1/patterns:test.
type patternTest struct {
	Pattern json.RawMessage `json:"pattern"`
	Event   json.RawMessage `json:"event"`
}

// patternAnswer says whether an event matches, and which fields of the pattern do not match.
type patternAnswer struct {
	Match  bool           `json:"match"`
	Failed []patternField `json:"failed,omitempty"`
}

type patternField struct {
	// Pointer is the field's JSON Pointer in the pattern.
	Pointer string             `json:"pointer"`
	Cause   eventpattern.Cause `json:"cause"`
}

func (*API) testPattern(w http.ResponseWriter, r *http.Request) error {
	body, err := read(w, r, testBytes)
	if err != nil {
		return err
	}
	var test patternTest
	if err := invalidBody(model.Decode(body, &test)); err != nil {
		return err
	}
	var faults model.FaultList
	pattern, err := eventpattern.Parse(test.Pattern)
	if err != nil {
		at := new(eventpattern.Error)
		_ = errors.As(err, &at) // otherwise the pointer is that of the whole pattern
		faults.Add("/pattern"+at.Pointer, "%s", err)
	}
	// The preprocessor refuses duplicate keys at any depth, and so does this.
	if err := event.Check(test.Event); err != nil {
		faults.Add("/event", "%s", err)
	}
	if err := invalidBody(faults); err != nil {
		return err
	}
	found, err := pattern.Explain(test.Event)
	if err != nil {
		faults.Add("/event", "%s", err)
		return invalidBody(faults)
	}
	answer := patternAnswer{Match: found.Match}
	for _, f := range found.Failed {
		answer.Failed = append(answer.Failed, patternField(f))
	}
	return write(w, http.StatusOK, answer)
}
