package eventbridge

import (
	"encoding/json"
	"errors"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/schema"
	"github.com/aviaryhq/aviary/internal/eventbridge/target"
	"github.com/aviaryhq/aviary/internal/eventbridge/template"
)

// checksOf returns the checks of the packages below.
func checksOf(f *target.Factory) model.Checks {
	return model.Checks{
		Schema: func(text json.RawMessage) []model.Fault {
			if _, err := schema.Compile(text); err != nil {
				return []model.Fault{{Problem: err.Error()}}
			}
			return nil
		},
		Transform: func(t *model.Transform) []model.Fault {
			_, err := template.Compile(t)
			return transformFaults(err)
		},
		Target: func(t *model.Target) (found []model.Fault) {
			f.Check(t, func(pointer, problem string) {
				found = append(found, model.Fault{Pointer: pointer, Problem: problem})
			})
			return found
		},
	}
}

// transformFaults returns the faults in an error of template.Compile.
func transformFaults(err error) (found []model.Fault) {
	if err == nil {
		return nil
	}
	all := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		all = joined.Unwrap()
	}
	for _, one := range all {
		var at *template.Fault
		if errors.As(one, &at) {
			found = append(found, model.Fault{Pointer: at.Pointer, Problem: at.Problem})
		} else {
			found = append(found, model.Fault{Problem: one.Error()})
		}
	}
	return found
}
