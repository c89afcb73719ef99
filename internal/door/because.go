package door

import "fmt"

// Because adds to err what why says of its cause, unless that is nothing. why may be nil.
func Because(err error, why func() error) error {
	if why == nil {
		return err
	}
	cause := why()
	if cause == nil {
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}
