// Package await has the one limit for the waits of tests.
package await

import "time"

// Patience is how long a test waits for a condition before it fails. It is far more than any machine
// needs: a wait ends as soon as its condition holds, so only a test that fails takes that long.
const Patience = time.Minute
