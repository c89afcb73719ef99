package stack

import (
	"context"
	"errors"
	"os/exec"
)

// victoriaMetricsService installs Debian's victoria-metrics for its vmagent, which benchmarks compare with.
func (s *Stack) victoriaMetricsService() service {
	return service{
		name:  "victoria-metrics",
		fetch: s.fetchVictoriaMetrics,
		installed: func() ([]string, error) {
			bin, err := exec.LookPath("vmagent")
			if err != nil {
				return nil, err
			}
			return []string{"VMAGENT_BIN=" + bin}, nil
		},
	}
}

func (s *Stack) fetchVictoriaMetrics(ctx context.Context) error {
	if _, err := exec.LookPath("vmagent"); err == nil {
		return nil
	}
	svc := installed{"victoria-metric", []string{"victoria-metrics.service"}} // the kernel keeps 15 bytes of a name
	if err := s.installQuietly(ctx, "victoria-metrics", svc); err != nil {
		return err
	}
	if _, err := exec.LookPath("vmagent"); err != nil {
		return errors.New("installed, but vmagent is not in PATH")
	}
	return nil
}
