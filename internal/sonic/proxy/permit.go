package proxy

import "github.com/aviaryhq/aviary/internal/sonic/command"

// mayRun reports whether the user may run a command, whatever keys it names.
func (u *user) mayRun(cmd *command.Command) bool {
	if u.readOnly && cmd.Changes {
		return false
	}
	if u.keys == nil {
		return true
	}
	// Redis sees one user, Sonic: it cannot keep a script from the keys that this user may not name.
	return cmd.Group != "scripting"
}
