package stack

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/aviaryhq/aviary/test/stack/install"
	"github.com/aviaryhq/aviary/test/stack/process"
)

// classDataPath names the archive of loaded and verified classes that the JVM maps at start instead
// of loading them from 330 jars again. It fits one Java build and one distribution.
func classDataPath(home string, jvm install.Java) string {
	return filepath.Join(home, install.ClassDataName+jvm.Build+".jsa")
}

func (b *broker) classDataArgs() []string {
	path := classDataPath(b.home, b.java)
	if info, err := os.Stat(path); err != nil || info.Size() == 0 {
		return nil
	}
	return []string{"-XX:SharedArchiveFile=" + path, "-Xlog:cds=off", "-Xlog:class+path=off"}
}

// trainClassData makes the class-data archive, once per machine, by running a broker that writes it
// when it ends. Starts work without it, only slower, so failing is not an error: it leaves an empty
// file and is not tried again.
func (s *Stack) trainClassData(ctx context.Context, jvm install.Java, home string) error {
	path := classDataPath(home, jvm)
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	unlock, err := process.Lock(ctx, filepath.Join(s.cache, "servers", filepath.Base(home)+".lock"), s.log)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	s.log.Printf("preparing Pulsar for fast starts, about 15 seconds, once")
	began := time.Now()
	if err := s.dumpClassData(ctx, home, path); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.log.Printf("going on without: %v", err)
		return os.WriteFile(path, nil, 0o644)
	}
	s.log.Printf("prepared after %v", time.Since(began).Round(100*time.Millisecond))
	return nil
}

func (s *Stack) dumpClassData(ctx context.Context, home, path string) error {
	dir := home + ".work" // under the lock of home, as what is being fetched
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b, err := s.newBroker(ctx, "standalone", dir, 0, 0)
	if err != nil {
		return err
	}
	defer b.ReleasePorts()
	b.conf = nil
	if err := b.prepare(); err != nil {
		return err
	}
	fresh := filepath.Join(dir, "new.jsa")
	c, err := b.command("-XX:ArchiveClassesAtExit="+fresh, "-Xlog:cds=off", "-Xlog:cds+dynamic=off")
	if err != nil {
		return err
	}
	p, done, err := process.StartOwned(c)
	if err != nil {
		return err
	}
	healthErr := b.WaitHealthy(ctx, p)
	stopErr := p.Stop(ctx)
	<-done
	if healthErr != nil {
		return healthErr
	}
	if stopErr != nil {
		return stopErr
	}
	if info, err := os.Stat(fresh); err != nil || info.Size() == 0 {
		return &fs.PathError{Op: "write class data", Path: fresh, Err: fs.ErrNotExist}
	}
	return os.Rename(fresh, path)
}
