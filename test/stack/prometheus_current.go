package stack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/aviaryhq/aviary/test/stack/install"
	"github.com/aviaryhq/aviary/test/stack/process"
)

// prometheusCurrentService is the Prometheus of go.mod, which speaks remote write 2.0.
// Distributions' ones are years behind.
func (s *Stack) prometheusCurrentService() service {
	return service{
		name:    "prometheus-current",
		fetch:   s.buildPrometheus,
		missing: s.missingPrometheus,
		installed: func() ([]string, error) {
			_, bin, err := s.currentPrometheus(context.Background())
			if err != nil {
				return nil, err
			}
			return []string{"PROMETHEUS_CURRENT_BIN=" + bin}, nil
		},
	}
}

const prometheusModule = "github.com/prometheus/prometheus"

// currentPrometheus returns the module's version and where the program built of it is kept. It
// fetches nothing.
func (s *Stack) currentPrometheus(ctx context.Context) (version, bin string, err error) {
	root, err := moduleRoot()
	if err != nil {
		return "", "", err
	}
	out, err := process.Job{Dir: root}.Run(ctx, "go", "list", "-m", "-f", "{{.Version}}", prometheusModule)
	if err != nil {
		return "", "", fmt.Errorf("cannot find the module of Prometheus: %w: %s", err, process.LastLine(out))
	}
	version = process.LastLine(out)
	return version, filepath.Join(s.cache, "tools", "prometheus-"+version, "prometheus"), nil
}

// prometheusModules is the size of the modules that its build fetches, beside those of Aviary.
const prometheusModules = 140e6

func (s *Stack) missingPrometheus(ctx context.Context) ([]install.Download, error) {
	_, bin, err := s.currentPrometheus(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(bin); err == nil {
		return nil, nil
	}
	to := "Go's module cache, and built to " + filepath.Dir(bin)
	return []install.Download{{What: "Go modules of a current Prometheus", Size: prometheusModules, To: to}}, nil
}

// prometheusSource returns the folder of the module, which it fetches if need be.
func prometheusSource(ctx context.Context, version string) (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	out, err := process.Job{Dir: root}.Run(ctx, "go", "mod", "download", "-json", prometheusModule+"@"+version)
	var module struct{ Dir, Error string }
	if start := strings.IndexByte(out, '{'); start >= 0 { // behind what go says it downloads
		err = errors.Join(err, json.Unmarshal([]byte(out[start:]), &module))
	}
	if err != nil || module.Dir == "" {
		return "", fmt.Errorf("cannot fetch the module of Prometheus (no network?): %w", errors.Join(err, errors.New(process.FirstLine(module.Error))))
	}
	return module.Dir, nil
}

// buildPrometheus builds it once, in the module's own folder with the module's own dependencies:
// those of Aviary stay as they are. Service discovery, most of what there would be to build, is
// left out.
func (s *Stack) buildPrometheus(ctx context.Context) error {
	version, bin, err := s.currentPrometheus(ctx)
	if err != nil {
		return err
	}
	if _, err := os.Stat(bin); err == nil {
		return nil
	}
	unlock, err := process.Lock(ctx, filepath.Dir(bin)+".lock", s.log)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(bin); err == nil { // by the process that held the lock
		return nil
	}
	s.log.Printf("building a current Prometheus from its module, once; this takes some minutes")
	source, err := prometheusSource(ctx, version)
	if err != nil {
		return err
	}
	name, err := os.ReadFile(filepath.Join(source, "VERSION"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(bin), 0o750); err != nil {
		return err
	}
	// Its go.work names folders that modules do not contain.
	build := process.Job{Dir: source, Env: []string{"GOWORK=off", "GOFLAGS=-mod=readonly", "CGO_ENABLED=0"}, Nice: s.cfg.BuildNice}
	out, err := build.Run(ctx, "go", "build", "-trimpath", "-tags", "remove_all_sd",
		"-ldflags", "-s -w -X github.com/prometheus/common/version.Version="+strings.TrimSpace(string(name)), "-o", bin+".new", "./cmd/prometheus")
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("cannot build it (no network?): %w: %s", err, process.LastLine(out))
	}
	return os.Rename(bin+".new", bin)
}
