package stack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const mavenPlugin = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:"

// fetchMaven has mvn copy an artifact into dir. With fresh it ignores the user's local repository, which may hold a
// damaged copy, and uses an empty one under dir.
func fetchMaven(ctx context.Context, a artifact, dir string, fresh bool, log *progress) error {
	return runMaven(ctx, a, dir, fresh, log, mavenPlugin+"copy", "-Dartifact="+a.coordinates, "-DoutputDirectory="+dir)
}

// fetchMavenJars has mvn copy artifacts and everything they need at run time into a folder of dir.
func fetchMavenJars(ctx context.Context, a artifact, dir string, fresh bool, log *progress) error {
	var pom strings.Builder
	pom.WriteString("<project><modelVersion>4.0.0</modelVersion><groupId>aviary</groupId><artifactId>stack</artifactId>" +
		"<version>1</version><packaging>pom</packaging><dependencies>\n")
	for coordinates := range strings.FieldsSeq(a.coordinates) {
		parts := strings.Split(coordinates, ":")
		fmt.Fprintf(&pom, "<dependency><groupId>%s</groupId><artifactId>%s</artifactId><version>%s</version></dependency>\n",
			parts[0], parts[1], parts[2])
	}
	pom.WriteString("</dependencies></project>\n")
	file := filepath.Join(dir, "pom.xml")
	if err := os.WriteFile(file, []byte(pom.String()), 0o644); err != nil {
		return err
	}
	return runMaven(ctx, a, dir, fresh, log, "-f", file, mavenPlugin+"copy-dependencies", "-DincludeScope=runtime",
		"-DoutputDirectory="+filepath.Join(dir, a.file))
}

func runMaven(ctx context.Context, a artifact, dir string, fresh bool, log *progress, args ...string) error {
	mvn, err := exec.LookPath("mvn")
	if err != nil {
		return errors.New("mvn not found: install Maven (Debian: maven), it downloads the server from the Maven repository")
	}
	args = append([]string{"-B", "-ntp"}, args...)
	watched := []string{dir}
	if fresh {
		args = append(args, "-Dmaven.repo.local="+filepath.Join(dir, "m2"))
	} else if home, err := os.UserHomeDir(); err == nil && a.localPath != "" {
		// Only to show progress; a local repository elsewhere just shows less.
		watched = append(watched, filepath.Join(home, ".m2", "repository", a.localPath))
	}
	cmd := exec.CommandContext(ctx, mvn, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	// mvn is a script around a JVM: end both when the user gives up.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }

	log.printf("fetching %s from the Maven repository, %d MB", a.coordinates, a.size/1e6)
	began := time.Now()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		ticker := time.NewTicker(2 * time.Second)
		defer ticker.Stop()
		for {
			select {
			case <-stop:
				return
			case <-ticker.C:
				log.printf("  %d of %d MB after %v", min(largest(watched), a.size)/1e6, a.size/1e6, time.Since(began).Round(time.Second))
			}
		}
	}()
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("mvn cannot fetch %s (no network, or the Maven repository is not reachable): %s", a.coordinates, mavenError(out.String(), err))
	}
	log.printf("fetched after %v", time.Since(began).Round(100*time.Millisecond))
	return nil
}

// largest returns the size of the largest file below any of the folders: the download, wherever mvn keeps it.
func largest(dirs []string) int64 {
	var size int64
	for _, dir := range dirs {
		_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, _ error) error {
			if d == nil { // the folder does not exist yet
				return nil
			}
			if info, err := d.Info(); err == nil && info.Mode().IsRegular() {
				size = max(size, info.Size())
			}
			return nil
		})
	}
	return size
}

func mavenError(out string, err error) string {
	for line := range strings.Lines(out) {
		if rest, ok := strings.CutPrefix(line, "[ERROR] "); ok {
			return firstLine(rest)
		}
	}
	return err.Error()
}
