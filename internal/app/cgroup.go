package app

import (
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// cgroupLimit returns the memory limit in bytes of the control groups of this process: the least on
// the way to the root, of versions 1 and 2. It returns false if there is no limit. root is the root
// of the file system.
func cgroupLimit(root fs.FS) (int64, bool) {
	var least int64
	for _, group := range memoryGroups(root) {
		for dir := group.dir; ; dir = path.Dir(dir) {
			for _, file := range group.files {
				text, err := fs.ReadFile(root, path.Join(dir, file))
				if err != nil {
					continue // the root has no such file
				}
				// Version 2 writes "max" for no limit, version 1 a number that no machine has.
				limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
				if err == nil && limit > 0 && limit < 1<<60 && (least == 0 || limit < least) {
					least = limit
				}
			}
			if dir == group.mount || dir == "." {
				break
			}
		}
	}
	return least, least > 0
}

// memoryGroup is the directory with the files of a control group, and the directory where the
// hierarchy is mounted. The directories between them have the groups above it.
type memoryGroup struct {
	dir, mount string
	files      []string
}

func memoryGroups(root fs.FS) []memoryGroup {
	mounts, err := fs.ReadFile(root, "proc/self/mountinfo")
	if err != nil {
		return nil
	}
	own, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return nil
	}
	var groups []memoryGroup
	for line := range strings.Lines(string(mounts)) {
		// 32 31 0:29 /root /mount/point options [more] - type source options
		before, after, ok := strings.Cut(line, " - ")
		place, kind := strings.Fields(before), strings.Fields(after)
		if !ok || len(place) < 5 || len(kind) < 3 {
			continue
		}
		g := memoryGroup{mount: strings.TrimPrefix(place[4], "/")}
		var name string
		switch {
		case kind[0] == "cgroup2":
			name, g.files = pathOf(string(own), ""), []string{"memory.max", "memory.high"}
		case kind[0] == "cgroup" && contains(kind[2], "memory"):
			name, g.files = pathOf(string(own), "memory"), []string{"memory.limit_in_bytes"}
		default:
			continue
		}
		g.dir = path.Join(g.mount, below(name, place[3]))
		groups = append(groups, g)
	}
	return groups
}

// pathOf returns the path of the process' group: that of a controller of version 1 or, without a
// controller, that of version 2.
func pathOf(own, controller string) string {
	for line := range strings.Lines(own) {
		if fields := strings.SplitN(strings.TrimSpace(line), ":", 3); len(fields) == 3 && contains(fields[1], controller) {
			return fields[2]
		}
	}
	return "/"
}

// below returns the path of a group below the mounted directory. A container may see another part
// of the tree than its path says: then the mounted directory is its own group.
func below(name, mounted string) string {
	mounted = strings.TrimSuffix(mounted, "/")
	if name != mounted && !strings.HasPrefix(name, mounted+"/") {
		return ""
	}
	return strings.TrimPrefix(name, mounted)
}

func contains(list, item string) bool {
	for one := range strings.SplitSeq(list, ",") {
		if one == item {
			return true
		}
	}
	return false
}
