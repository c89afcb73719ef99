package stack

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A port is a TCP port that no other stack of this machine takes while its lock file is open, here or in a server
// that inherited it. Nothing is listening on it until the server does.
type port struct {
	number int
	lock   *os.File
}

// reservePort finds a free port below the kernel's ephemeral range. A port of that range could be taken by any
// outgoing connection while its server is down, even by a client that connects to itself when it dials the dead
// server again.
func reservePort(cache string) (port, error) {
	const lowest = 15000
	highest := ephemeralStart() - 1
	if highest <= lowest {
		return port{}, errors.New("no ports below the ephemeral range: set ports by flag")
	}
	for range 500 {
		n := lowest + rand.IntN(highest-lowest)
		p, err := lockPort(cache, n)
		if err != nil {
			return port{}, err
		}
		if p.lock == nil {
			continue
		}
		if err := probePort(n); err != nil {
			p.lock.Close()
			continue
		}
		return p, nil
	}
	return port{}, errors.New("found no free port")
}

// reservePorts reserves n ports, or none.
func reservePorts(cache string, n int) ([]port, error) {
	ports := make([]port, 0, n)
	for range n {
		p, err := reservePort(cache)
		if err != nil {
			releasePorts(ports)
			return nil, err
		}
		ports = append(ports, p)
	}
	return ports, nil
}

// releasePorts lets go of ports here; a server that inherited their locks keeps them.
func releasePorts(ports []port) {
	for _, p := range ports {
		if p.lock != nil {
			p.lock.Close()
		}
	}
}

func portLocks(ports []port) []*os.File {
	var files []*os.File
	for _, p := range ports {
		files = append(files, p.lock)
	}
	return files
}

// fixedPort takes the port the user asked for.
func fixedPort(cache string, n int, flag string) (port, error) {
	if err := probePort(n); err != nil {
		holder := "another process"
		if h := portHolder(n); h != "" {
			holder = h
		}
		return port{}, fmt.Errorf("port %d is in use by %s: end it or choose another port with %s", n, holder, flag)
	}
	p, err := lockPort(cache, n)
	if err == nil && p.lock == nil {
		err = fmt.Errorf("port %d is about to be used by another stack: choose another port with %s", n, flag)
	}
	return p, err
}

// lockPort returns a port without lock when someone else holds it.
func lockPort(cache string, n int) (port, error) {
	dir := filepath.Join(cache, "ports")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return port{}, err
	}
	f, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(n)), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return port{}, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return port{}, nil
		}
		return port{}, err
	}
	return port{number: n, lock: f}, nil
}

func probePort(n int) error {
	l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(n))
	if err != nil {
		return err
	}
	return l.Close()
}

func ephemeralStart() int {
	data, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err == nil {
		if fields := strings.Fields(string(data)); len(fields) == 2 {
			if n, err := strconv.Atoi(fields[0]); err == nil {
				return n
			}
		}
	}
	return 32768
}

// portHolder names the process that listens on a port, or returns "" when it cannot be had.
func portHolder(n int) string {
	inodes := make(map[string]bool)
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		data, _ := os.ReadFile(file)
		for line := range strings.Lines(string(data)) {
			// sl local_address rem_address st ... inode; state 0A is LISTEN.
			f := strings.Fields(line)
			if len(f) > 9 && f[3] == "0A" && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", n)) {
				inodes["socket:["+f[9]+"]"] = true
			}
		}
	}
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range fds {
		target, err := os.Readlink(fd)
		if err != nil || !inodes[target] {
			continue
		}
		pid := strings.Split(fd, "/")[2]
		name, _ := os.ReadFile("/proc/" + pid + "/comm")
		return fmt.Sprintf("process %s (%s)", pid, strings.TrimSpace(string(name)))
	}
	return ""
}
