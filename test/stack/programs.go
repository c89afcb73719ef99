package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/aviaryhq/aviary/test/stack/install"
)

func (s *Stack) prometheusService() service {
	return service{
		name:    "prometheus",
		fetch:   s.fetchPrometheus,
		missing: install.MissingPackage("prometheus", 23e6, install.Programs("prometheus")),
		installed: func() ([]string, error) {
			bin, err := exec.LookPath("prometheus")
			if err != nil {
				return nil, err
			}
			return []string{"PROMETHEUS_BIN=" + bin}, nil
		},
	}
}

func (s *Stack) fetchPrometheus(ctx context.Context) error {
	if _, err := exec.LookPath("prometheus"); err == nil {
		return nil
	}
	if err := s.packages.Debian(ctx, "prometheus", install.Service{Process: "prometheus", Units: []string{"prometheus.service"}}); err != nil {
		return err
	}
	if _, err := exec.LookPath("prometheus"); err != nil {
		return errors.New("installed, but not found in PATH")
	}
	return nil
}

// Prometheus returns the paths of Debian's prometheus and promtool, installed if need be.
//
// If they cannot be had, the test fails when the environment variable CI is set and is skipped
// elsewhere.
func Prometheus(t testing.TB) (server, promtool string) {
	t.Helper()
	obtain(t, "prometheus", func(ctx context.Context, s *Stack) (err error) {
		if err = s.fetchPrometheus(ctx); err == nil {
			server, err = exec.LookPath("prometheus")
		}
		if err == nil {
			promtool, err = exec.LookPath("promtool")
		}
		return err
	})
	return server, promtool
}

// obtain has get install a program. If that fails the test fails or is skipped, as [Unavailable]
// says.
func obtain(t testing.TB, name string, get func(context.Context, *Stack) error) {
	t.Helper()
	s, err := New(Config{Log: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), setupTimeout)
	defer cancel()
	if err := get(ctx, s); err != nil {
		Unavailable(t, name, err)
	}
}

// victoriaMetricsService installs Debian's victoria-metrics for its vmagent, which benchmarks
// compare with.
func (s *Stack) victoriaMetricsService() service {
	return service{
		name:    "victoria-metrics",
		fetch:   s.fetchVictoriaMetrics,
		missing: install.MissingPackage("victoria-metrics", 23e6, install.Programs("vmagent")),
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
	svc := install.Service{Process: "victoria-metric", Units: []string{"victoria-metrics.service"}} // the kernel keeps 15 bytes of a name
	if err := s.packages.Debian(ctx, "victoria-metrics", svc); err != nil {
		return err
	}
	if _, err := exec.LookPath("vmagent"); err != nil {
		return errors.New("installed, but vmagent is not in PATH")
	}
	return nil
}

// nutcrackerService installs Debian's nutcracker, a proxy for Redis that benchmarks compare with.
func (s *Stack) nutcrackerService() service {
	return service{
		name:    "nutcracker",
		fetch:   s.fetchNutcracker,
		missing: install.MissingPackage("nutcracker", 0.1e6, func() error { _, err := findNutcracker(); return err }),
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
	if err := s.packages.Debian(ctx, "nutcracker", install.Service{Process: "nutcracker", Units: []string{"nutcracker.service"}}); err != nil {
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

// chromiums are programs that are a Chromium which can run without a screen. The first is that of
// the Debian package of its name.
func chromiums() []string { return []string{"chromium-headless-shell", "chromium", "google-chrome"} }

// Chromium returns the path of a Chromium that can run without a screen, installed if need be.
//
// If none can be had, the test fails when the environment variable CI is set and is skipped
// elsewhere.
func Chromium(t testing.TB) string {
	t.Helper()
	var path string
	obtain(t, "chromium", func(ctx context.Context, s *Stack) (err error) {
		path, err = s.chromium(ctx)
		return err
	})
	return path
}

func (s *Stack) chromium(ctx context.Context) (string, error) {
	for _, name := range chromiums() {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	pkg := chromiums()[0]
	if err := s.packages.Debian(ctx, pkg); err != nil { // it has no service
		return "", err
	}
	return exec.LookPath(pkg)
}

// The versions of the servers.
const (
	PulsarVersion = pulsarVersion
	KafkaVersion  = kafkaVersion
)

// Program returns the path of a program, and installs the Debian package that has it if need be.
// The package has no service.
func Program(ctx context.Context, name, pkg string) (string, error) {
	s, err := New(Config{Log: os.Stderr})
	if err != nil {
		return "", err
	}
	return s.program(ctx, name, pkg)
}

func (s *Stack) program(ctx context.Context, name, pkg string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	if err := s.packages.Debian(ctx, pkg); err != nil {
		return "", err
	}
	return exec.LookPath(name)
}

// Buildah returns the path of buildah, which makes images of containers without a server, installed
// if need be.
//
// If it cannot be had, the test fails when the environment variable CI is set and is skipped
// elsewhere.
func Buildah(t testing.TB) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), setupTimeout)
	defer cancel()
	path, err := Program(ctx, "buildah", "buildah")
	if err != nil {
		Unavailable(t, "buildah", err)
	}
	return path
}
