package app

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// The Makefile sets them through -ldflags -X, so that a build without version control information
// has its version.
var (
	version string
	commit  string //nolint:gochecknoglobals // the linker sets it
)

// Build says what this binary was built from.
type Build struct{ Version, Commit, Go string }

func (b Build) String() string {
	return fmt.Sprintf("version %s, commit %s, %s", b.Version, b.Commit, b.Go)
}

// ThisBuild prefers the values set by the linker to those that the toolchain recorded.
func ThisBuild() Build {
	b := Build{Version: version, Commit: commit, Go: runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		if b.Version == "" && info.Main.Version != "" {
			b.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			if b.Commit == "" && s.Key == "vcs.revision" {
				b.Commit = s.Value
			}
		}
	}
	if b.Version == "" {
		b.Version = "unknown"
	}
	if b.Commit == "" {
		b.Commit = "unknown"
	}
	return b
}
