package refusal

import "fmt"

// WithCause adds the cause that why returns to err, if there is one. why may be nil.
func WithCause(err error, why func() error) error {
	if why == nil {
		return err
	}
	cause := why()
	if cause == nil {
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}
