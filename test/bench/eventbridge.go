package main

import (
	"context"
	"fmt"
)

// eventbridgeScenario measures Eventbridge and its parts.
func eventbridgeScenario(ctx context.Context, r *report) error {
	for _, part := range []struct {
		name string
		run  func(context.Context, *report) error
	}{
		{"matcher", matcherPart},
	} {
		if !r.wants(part.name) {
			continue
		}
		if err := part.run(ctx, r); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}
