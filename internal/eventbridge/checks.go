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
		Transform: func(t *model.Transform) (found []model.Fault) {
			var invalid *model.Invalid
			if _, err := template.Compile(t); errors.As(err, &invalid) {
				found = invalid.Faults
			}
			return found
		},
		Target: f.Check,
	}
}
