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

func (a *API) testPattern(w http.ResponseWriter, r *http.Request) {
	answer, err := a.explain(w, r)
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	write(w, http.StatusOK, answer)
}

func (a *API) explain(w http.ResponseWriter, r *http.Request) (answer patternAnswer, err error) {
	body, err := a.read(w, r, testBytes)
	if err != nil {
		return answer, err
	}
	var test patternTest
	if err := strict(body, &test); err != nil {
		return answer, err
	}
	var faults []model.Fault
	fault := func(pointer, problem string) {
		faults = append(faults, model.Fault{Pointer: pointer, Problem: problem}.Short())
	}
	var pattern *eventpattern.Pattern
	if len(test.Pattern) == 0 {
		fault("/pattern", "must be given")
	} else if pattern, err = eventpattern.Parse(test.Pattern); err != nil {
		var at *eventpattern.Error
		if errors.As(err, &at) {
			fault("/pattern"+at.Pointer, err.Error())
		} else {
			fault("/pattern", err.Error())
		}
	}
	switch {
	case len(test.Event) == 0:
		fault("/event", "must be given")
	default:
		// The preprocessor refuses duplicate keys at any depth, and so does this.
		if err := event.Check(test.Event); err != nil {
			fault("/event", err.Error())
		}
	}
	if len(faults) > 0 {
		return answer, &statusError{status: http.StatusBadRequest, text: "the pattern or the event is not valid", faults: faults}
	}
	found, err := pattern.Explain(test.Event)
	if err != nil {
		return answer, &statusError{
			status: http.StatusBadRequest, text: "the pattern or the event is not valid", faults: []model.Fault{model.Fault{Pointer: "/event", Problem: err.Error()}.Short()},
		}
	}
	answer.Match = found.Match
	for _, f := range found.Failed {
		answer.Failed = append(answer.Failed, patternField{Pointer: f.Pointer, Cause: f.Cause})
	}
	return answer, nil
}
