package app

import (
	"fmt"

	"github.com/aviaryhq/aviary/internal/setup"
)

// setup prints the resources that the service needs at Pulsar and that are missing, and with apply
// creates them. It returns the exit status.
func (p Program[T]) setup(proc process, cfg T, source string, apply bool) int {
	ctx, cancel := proc.untilSignal()
	defer cancel()
	var clusters []setup.Cluster
	if p.Setup != nil {
		var err error
		if clusters, err = p.Setup(ctx, cfg); err != nil {
			return proc.fail(p.Name, err)
		}
	}
	heading := fmt.Sprintf("%s: its objects at Pulsar (%s), + missing, - replaced:\n", p.Name, source)
	changes, err := setup.Run(ctx, clusters, apply, heading, proc.stdout)
	switch {
	case err != nil:
		return proc.fail(p.Name, err)
	case changes == 0:
		return proc.print(p.Name + ": nothing to change\n")
	case !apply:
		return proc.print(fmt.Sprintf("%s: changes that -setup would make: %d\n", p.Name, changes))
	default:
		return proc.print(fmt.Sprintf("%s: changes made: %d\n", p.Name, changes))
	}
}
