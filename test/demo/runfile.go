package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const folderPrefix = "aviary-demo-"

// runFile is locked while a demo, or a smoke, of this checkout runs, and names its folder: the next
// one deletes it, should this one be killed.
type runFile struct{ *os.File }

// openRun refuses a second run of the same kind from the same checkout, which would share its
// servers and take them down. It deletes what a run that was killed has left.
func openRun(path string) (*runFile, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	r := &runFile{f}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errors.New("already running from this checkout: stop the other one first")
		}
		return nil, err
	}
	left, err := io.ReadAll(f)
	if dir := string(left); err == nil && strings.HasPrefix(filepath.Base(dir), folderPrefix) {
		err = os.RemoveAll(dir)
	}
	if err == nil {
		err = r.note("")
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return r, nil
}

// note keeps the name of the folder that is to be deleted; empty: none.
func (r *runFile) note(dir string) error {
	if err := r.Truncate(0); err != nil {
		return err
	}
	_, err := r.WriteAt([]byte(dir), 0)
	return err
}

// close ends the run in order: what it has left, logs of a failure, is to stay.
func (r *runFile) close() error { return errors.Join(r.note(""), r.Close()) }
