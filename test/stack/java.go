package stack

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

const javaNeeded = 17

type java struct {
	path string
	// build tells Java builds apart: a class-data archive fits one of them only.
	build string
}

func findJava(ctx context.Context) (java, error) {
	var path string
	if home := os.Getenv("JAVA_HOME"); home != "" {
		path = filepath.Join(home, "bin", "java")
		if _, err := os.Stat(path); err != nil {
			return java{}, fmt.Errorf("JAVA_HOME has no bin/java: point it to Java %d or newer, or unset it", javaNeeded)
		}
	} else {
		found, err := exec.LookPath("java")
		if err != nil {
			return java{}, fmt.Errorf("java not found: install Java %d or newer (Debian: openjdk-17-jre-headless) or set JAVA_HOME", javaNeeded)
		}
		path = found
	}
	out, err := exec.CommandContext(ctx, path, "-version").CombinedOutput()
	if err != nil {
		return java{}, fmt.Errorf("%s does not run: %w: %s", path, err, firstLine(string(out)))
	}
	major, err := javaMajor(string(out))
	if err != nil {
		return java{}, fmt.Errorf("%s: %w", path, err)
	}
	if major < javaNeeded {
		return java{}, fmt.Errorf("%s is Java %d: the servers need Java %d or newer, install it or set JAVA_HOME", path, major, javaNeeded)
	}
	sum := sha256.Sum256(out)
	return java{path: path, build: hex.EncodeToString(sum[:6])}, nil
}

// javaMajor reads the output of "java -version": 1.8.0_392 is Java 8, 17.0.15 is 17, 21-ea is 21.
func javaMajor(out string) (int, error) {
	m := regexp.MustCompile(`version "(?:1\.)?(\d+)`).FindStringSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("cannot tell its version from %q", firstLine(out))
	}
	return strconv.Atoi(m[1])
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	if len(line) > 300 {
		line = line[:300] + "..."
	}
	return line
}
