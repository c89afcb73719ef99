package install

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

	"github.com/aviaryhq/aviary/test/stack/process"
)

const javaNeeded = 17

// Java is a JVM of this machine.
type Java struct {
	Path string
	// Build tells Java builds apart: a class-data archive fits one of them only.
	Build string
}

// FindJava returns the JVM of JAVA_HOME, else the first of PATH. The error says what to install.
func FindJava(ctx context.Context) (Java, error) {
	var path string
	if home := os.Getenv("JAVA_HOME"); home != "" {
		path = filepath.Join(home, "bin", "java")
		if _, err := os.Stat(path); err != nil {
			return Java{}, fmt.Errorf("JAVA_HOME has no bin/java: point it to Java %d or newer, or unset it", javaNeeded)
		}
	} else {
		found, err := exec.LookPath("java")
		if err != nil {
			return Java{}, fmt.Errorf("java not found: install Java %d or newer (Debian: openjdk-17-jre-headless) or set JAVA_HOME", javaNeeded)
		}
		path = found
	}
	out, err := exec.CommandContext(ctx, path, "-version").CombinedOutput()
	if err != nil {
		return Java{}, fmt.Errorf("%s does not run: %w: %s", path, err, process.FirstLine(string(out)))
	}
	major, err := JavaMajor(string(out))
	if err != nil {
		return Java{}, fmt.Errorf("%s: %w", path, err)
	}
	if major < javaNeeded {
		return Java{}, fmt.Errorf("%s is Java %d: the servers need Java %d or newer, install it or set JAVA_HOME", path, major, javaNeeded)
	}
	sum := sha256.Sum256(out)
	return Java{Path: path, Build: hex.EncodeToString(sum[:6])}, nil
}

// JavaMajor reads the output of "java -version": 1.8.0_392 is Java 8, 17.0.15 is 17, 21-ea is 21.
func JavaMajor(out string) (int, error) {
	m := regexp.MustCompile(`version "(?:1\.)?(\d+)`).FindStringSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("cannot tell its version from %q", process.FirstLine(out))
	}
	return strconv.Atoi(m[1])
}
