package proxy

import (
	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// mayRun reports whether the user may run a command, whatever keys it names.
func (u *user) mayRun(cmd *command.Command, r request) bool {
	if u.readOnly && cmd.Changes {
		return false
	}
	if u.keys == nil {
		return true
	}
	// Redis sees one user, Sonic: it cannot keep a script, or the patterns of SORT, from the keys that this user may not name.
	if cmd.Group == "scripting" {
		return false
	}
	if cmd.Name == "sort" || cmd.Name == "sort_ro" {
		for i := 2; i < r.len(); i++ {
			if resp.EqualFold(r.arg(i), "by") || resp.EqualFold(r.arg(i), "get") {
				return false
			}
		}
	}
	return true
}
