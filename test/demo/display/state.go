package display

// Check is one line of the smoke's table.
type Check struct {
	What      string
	Want, Got int64
}

// OK reports whether the check has passed.
func (c Check) OK() bool { return c.Want == c.Got }

// State is what a service does at the moment.
type State struct {
	Phase Phase
	Kills int
	Err   error // why it ended or did not start again
}

// Phase is a phase of the life of a service.
type Phase int

// The phases.
const (
	Starting Phase = iota
	Up
	Killed
	Restarting
	Down // ended by itself, or did not start again
	Stopping
)

// String is what people read.
func (p Phase) String() string {
	return [...]string{"starting", "running", "killed", "restarting", "down", "stopping"}[p]
}
