package stack

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/aviaryhq/aviary/test/stack/process"
)

// A record is what Up keeps of a running service, so that a later Up can reuse it and Down can stop
// it.
type record struct {
	Service   string       `json:"service"`
	Settings  string       `json:"settings"`
	Dir       string       `json:"dir"`
	Env       []string     `json:"env"`
	Processes []process.ID `json:"processes"`
	// Servers holds what the service needs to know to talk to its processes again.
	Servers []serverRecord `json:"servers"`

	path string
}

type serverRecord struct {
	URL      string `json:"url"`
	AdminURL string `json:"admin_url,omitempty"`
	// Dir is where a server keeps what commands for it need.
	Dir string `json:"dir,omitempty"`
}

func (s *Stack) recordPath(service string) string { return filepath.Join(s.dir, service+".json") }

// loadRecord returns nil when the service was not started, or when its record cannot be read any
// more.
func (s *Stack) loadRecord(service string) (*record, error) {
	path := s.recordPath(service)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	rec := &record{path: path}
	if err := json.Unmarshal(data, rec); err != nil {
		return nil, fmt.Errorf("state file is damaged, end its processes and delete it: %s: %w", path, err)
	}
	return rec, nil
}

// save replaces the file in one step: a crash leaves the old record or the new one.
func (r *record) save() error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	tmp := r.path + ".new"
	if err := os.WriteFile(tmp, data, 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, r.path)
}

func (r *record) alive() bool {
	for _, p := range r.Processes {
		if !p.Alive() {
			return false
		}
	}
	return len(r.Processes) > 0
}

// dead reports whether none of the processes lives any more.
func (r *record) dead() bool { return !slices.ContainsFunc(r.Processes, process.ID.Alive) }

func (r *record) stop() error {
	err := process.StopAll(r.Processes)
	if err == nil {
		err = os.RemoveAll(r.path)
	}
	return err
}

// remove stops the processes of a record and deletes it and the data.
func (s *Stack) remove(r *record) error {
	if err := r.stop(); err != nil {
		return err
	}
	return os.RemoveAll(r.Dir)
}
