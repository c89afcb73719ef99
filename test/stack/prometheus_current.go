package stack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

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

// currentPrometheus returns the module's version and where the program is kept that this version of
// Go builds of it. It fetches nothing: the version is in go.mod.
func (s *Stack) currentPrometheus(ctx context.Context) (version, bin string, err error) {
	root, err := moduleRoot()
	if err != nil {
		return "", "", err
	}
	// go list -m would ask for modules of other modules where Go's module cache is empty.
	out, err := process.Job{Dir: root}.Run(ctx, "go", "mod", "edit", "-json")
	if err != nil {
		return "", "", fmt.Errorf("cannot read go.mod: %w: %s", err, process.LastLine(out))
	}
	var mod struct {
		Require []struct{ Path, Version string }
	}
	if err := unmarshal(out, &mod); err != nil {
		return "", "", fmt.Errorf("cannot read go.mod: %w", err)
	}
	for _, r := range mod.Require {
		if r.Path == prometheusModule {
			version = r.Version
		}
	}
	if version == "" {
		return "", "", fmt.Errorf("go.mod does not require %s", prometheusModule)
	}
	if out, err = (process.Job{Dir: root}).Run(ctx, "go", "env", "GOVERSION"); err != nil {
		return "", "", fmt.Errorf("cannot tell the version of Go: %w: %s", err, process.LastLine(out))
	}
	return version, filepath.Join(s.cache, "tools", "prometheus-"+version+"-"+process.LastLine(out), "prometheus"), nil
}

// unmarshal reads what go has written behind what it says of downloads.
func unmarshal(out string, into any) error {
	return json.Unmarshal([]byte(out[max(0, strings.IndexByte(out, '{')):]), into)
}

// prometheusModules is the size of the modules that its build fetches, beside those of Aviary.
const prometheusModules = 140_000_000

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
func (s *Stack) prometheusSource(ctx context.Context, version string) (dir string, err error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	err = s.Try(ctx, func(ctx context.Context) error {
		out, err := process.Job{Dir: root}.Run(ctx, "go", "mod", "download", "-json", prometheusModule+"@"+version)
		var module struct{ Dir, Error string }
		if strings.Contains(out, "{") {
			err = errors.Join(err, unmarshal(out, &module))
		}
		if err == nil && module.Dir == "" || module.Error != "" {
			err = errors.Join(err, errors.New("go mod download: "+process.FirstLine(module.Error)))
		}
		dir = module.Dir
		return err
	})
	if err != nil {
		return "", fmt.Errorf("cannot fetch the module of Prometheus (no network?): %w", err)
	}
	return dir, nil
}

// buildPrometheus builds it once, in the module's own folder with the module's own dependencies:
// those of Aviary stay as they are. It builds without service discovery, which is most of the code.
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
	s.log.Printf("building a current Prometheus from its Go module, once: about %d MB to fetch, some minutes", prometheusModules/1_000_000)
	defer s.log.During(15*time.Second, func(elapsed time.Duration) string {
		return fmt.Sprintf("Prometheus: still fetching and building after %v", elapsed)
	})()
	source, err := s.prometheusSource(ctx, version)
	if err != nil {
		return err
	}
	name, err := os.ReadFile(filepath.Join(source, "VERSION"))
	if err != nil {
		return err
	}
	const tags, program = "remove_all_sd", "./cmd/prometheus"
	// Its go.work names folders that modules do not contain.
	build := process.Job{Dir: source, Env: []string{"GOWORK=off", "GOFLAGS=-mod=readonly", "CGO_ENABLED=0"}, Nice: s.cfg.BuildNice}
	// A list of the packages fetches the modules that have them, and no others.
	if err := s.Try(ctx, func(ctx context.Context) error {
		out, err := build.Run(ctx, "go", "list", "-deps", "-f", `{{""}}`, "-tags", tags, program)
		if err != nil {
			return fmt.Errorf("%w: %s", err, process.LastLine(out))
		}
		return nil
	}); err != nil {
		return fmt.Errorf("cannot fetch the modules that Prometheus needs (no network?): %w", err)
	}
	work := filepath.Dir(bin) + ".work"
	if err := os.RemoveAll(work); err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := os.MkdirAll(work, 0o750); err != nil {
		return err
	}
	out, err := build.Run(ctx, "go", "build", "-trimpath", "-tags", tags,
		"-ldflags", "-s -w -X github.com/prometheus/common/version.Version="+strings.TrimSpace(string(name)),
		"-o", filepath.Join(work, filepath.Base(bin)), program)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("cannot build it: %w: %s", err, process.LastLine(out))
	}
	if err := os.RemoveAll(filepath.Dir(bin)); err != nil {
		return err
	}
	return os.Rename(work, filepath.Dir(bin))
}
