package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// prometheusCurrentService is the Prometheus of go.mod, which speaks remote write 2.0. Distributions' ones are years behind.
func (s *Stack) prometheusCurrentService() service {
	return service{
		name:  "prometheus-current",
		fetch: s.buildPrometheus,
		installed: func() ([]string, error) {
			_, bin, err := s.currentPrometheus(context.Background())
			if err != nil {
				return nil, err
			}
			return []string{"PROMETHEUS_CURRENT_BIN=" + bin}, nil
		},
	}
}

// currentPrometheus returns where the module's source is and where the program built of it is kept.
func (s *Stack) currentPrometheus(ctx context.Context) (source, bin string, err error) {
	root, err := moduleRoot()
	if err != nil {
		return "", "", err
	}
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Version}} {{.GoVersion}} {{.Dir}}", "github.com/prometheus/prometheus")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return "", "", fmt.Errorf("cannot find the module of Prometheus: %w", err)
	}
	fields := strings.Fields(string(out))
	if len(fields) != 3 {
		return "", "", errors.New("the module of Prometheus is not downloaded: run `go mod download`")
	}
	return fields[2], filepath.Join(s.cache, "tools", "prometheus-"+fields[0], "prometheus"), nil
}

// buildPrometheus builds it once, in the module's own folder with the module's own dependencies: those of Aviary stay as they are. Service
// discovery, most of what there would be to build, is left out.
func (s *Stack) buildPrometheus(ctx context.Context) error {
	if _, err := exec.LookPath("go"); err != nil {
		return errors.New("go is not in PATH")
	}
	source, bin, err := s.currentPrometheus(ctx)
	if err != nil {
		return err
	}
	unlock, err := lockFile(ctx, filepath.Dir(bin)+".lock", s.log)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(bin); err == nil {
		return nil
	}
	s.log.printf("building a current Prometheus from its module, once; this takes some minutes")
	version, err := os.ReadFile(filepath.Join(source, "VERSION"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(bin), 0o750); err != nil {
		return err
	}
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-tags", "remove_all_sd",
		"-ldflags", "-s -w -X github.com/prometheus/common/version.Version="+strings.TrimSpace(string(version)), "-o", bin+".new", "./cmd/prometheus")
	// Its go.work names folders that modules do not contain.
	build.Dir, build.Env = source, append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=readonly", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return fmt.Errorf("cannot build it (no network?): %w: %s", err, lines[len(lines)-1])
	}
	return os.Rename(bin+".new", bin)
}
