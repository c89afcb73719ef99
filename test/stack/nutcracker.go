package stack

import (
	"context"
	"fmt"
	"os/exec"
)

// nutcrackerService installs Debian's nutcracker, a proxy for Redis that benchmarks compare with.
func (s *Stack) nutcrackerService() service {
	return service{
		name:  "nutcracker",
		fetch: s.fetchNutcracker,
		installed: func() ([]string, error) {
			bin, err := findNutcracker()
			return []string{"NUTCRACKER_BIN=" + bin}, err
		},
	}
}

func (s *Stack) fetchNutcracker(ctx context.Context) error {
	if _, err := findNutcracker(); err == nil {
		return nil
	}
	if err := s.installQuietly(ctx, "nutcracker", installed{"nutcracker", []string{"nutcracker.service"}}); err != nil {
		return err
	}
	if _, err := findNutcracker(); err != nil {
		return fmt.Errorf("installed, but not where Debian puts it: %w", err)
	}
	return nil
}

// findNutcracker looks where Debian puts it, too: in a folder that is in root's PATH only.
func findNutcracker() (string, error) {
	if bin, err := exec.LookPath("nutcracker"); err == nil {
		return bin, nil
	}
	return exec.LookPath("/usr/sbin/nutcracker")
}
