package eventbridge

import (
	"encoding/json"
	"errors"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
	"github.com/aviaryhq/aviary/internal/eventbridge/schema"
	"github.com/aviaryhq/aviary/internal/eventbridge/target"
	"github.com/aviaryhq/aviary/internal/eventbridge/transform"
)

// checksOf gathers what the parts know of what is valid.
func checksOf(f *target.Factory) registry.Checks {
	return registry.Checks{
		Schema: func(text json.RawMessage) []registry.Fault {
			if _, err := schema.Compile(text); err != nil {
				return []registry.Fault{{Problem: err.Error()}}
			}
			return nil
		},
		Transform: func(t *registry.Transform) []registry.Fault {
			_, err := transform.Compile(t)
			return transformFaults(err)
		},
		Target: func(t *registry.Target) (found []registry.Fault) {
			f.Check(t, func(pointer, problem string) {
				found = append(found, registry.Fault{Pointer: pointer, Problem: problem})
			})
			return found
		},
	}
}

// transformFaults takes the faults out of an error of transform.Compile.
func transformFaults(err error) (found []registry.Fault) {
	if err == nil {
		return nil
	}
	all := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		all = joined.Unwrap()
	}
	for _, one := range all {
		var at *transform.Fault
		if errors.As(one, &at) {
			found = append(found, registry.Fault{Pointer: at.Pointer, Problem: at.Problem})
		} else {
			found = append(found, registry.Fault{Problem: one.Error()})
		}
	}
	return found
}
