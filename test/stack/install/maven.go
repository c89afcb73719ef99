package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/test/stack/process"
)

const mavenPlugin = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:"

// Maven has mvn copy an artifact into dir. With fresh it ignores the user's local repository,
// which may hold a damaged copy, and uses an empty one under dir.
func Maven(ctx context.Context, a Artifact, dir string, fresh bool, log *process.Progress) error {
	return runMaven(ctx, a, dir, fresh, log, mavenPlugin+"copy", "-Dartifact="+a.Coordinates, "-DoutputDirectory="+dir)
}

// MavenJars has mvn copy artifacts and everything they need at run time into a folder of dir.
func MavenJars(ctx context.Context, a Artifact, dir string, fresh bool, log *process.Progress) error {
	var pom strings.Builder
	pom.WriteString("<project><modelVersion>4.0.0</modelVersion><groupId>aviary</groupId><artifactId>stack</artifactId>" +
		"<version>1</version><packaging>pom</packaging><dependencies>\n")
	for coordinates := range strings.FieldsSeq(a.Coordinates) {
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
		"-DoutputDirectory="+filepath.Join(dir, a.File))
}

func runMaven(ctx context.Context, a Artifact, dir string, fresh bool, log *process.Progress, args ...string) error {
	mvn, err := exec.LookPath("mvn")
	if err != nil {
		return errors.New("mvn not found: install Maven (Debian: maven), it downloads the server from the Maven repository")
	}
	args = append([]string{"-B", "-ntp"}, args...)
	watched := []string{dir}
	if fresh {
		args = append(args, "-Dmaven.repo.local="+filepath.Join(dir, "m2"))
	} else if home, err := os.UserHomeDir(); err == nil && a.LocalPath != "" {
		// Only to show progress; a local repository elsewhere just shows less.
		watched = append(watched, filepath.Join(home, ".m2", "repository", a.LocalPath))
	}
	name := strings.TrimSuffix(a.Folder, "/")
	log.Printf("fetching %s with Maven: %s, %d MB", name, a.Coordinates, Download{Size: a.Size}.Megabytes())
	began := time.Now()
	end := log.During(2*time.Second, func(elapsed time.Duration) string {
		return fmt.Sprintf("%s: %d of %d MB after %v", name, min(largest(watched), a.Size)/1e6, a.Size/1e6, elapsed)
	})
	err = Try(ctx, log, func(ctx context.Context) error {
		out, err := process.Job{}.Run(ctx, append([]string{mvn}, args...)...) // a script around a JVM: both end when the user gives up
		if err != nil {
			return errors.New(mavenError(out, err))
		}
		return nil
	})
	end()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("mvn cannot fetch %s (no network, or the Maven repository is not reachable): %w", a.Coordinates, err)
	}
	log.Printf("fetched %s after %v", name, time.Since(began).Round(100*time.Millisecond))
	return nil
}

// largest returns the size of the largest file below any of the folders: the download, wherever mvn
// keeps it.
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
			return process.FirstLine(rest)
		}
	}
	return err.Error()
}
