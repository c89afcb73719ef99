package process

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

// A Port is a TCP port that no other stack of this machine takes while its lock file is open, here
// or in a server that inherited it. Nothing is listening on it until the server does.
type Port struct {
	Number int
	Lock   *os.File
}

// ReservePort finds a free port below the kernel's ephemeral range. A port of that range could be
// taken by any outgoing connection while its server is down, even by a client that connects to
// itself when it dials the dead server again.
func ReservePort(cache string) (Port, error) {
	const lowest = 15000
	highest := EphemeralStart() - 1
	if highest <= lowest {
		return Port{}, errors.New("no ports below the ephemeral range: set ports by flag")
	}
	for range 500 {
		n := lowest + rand.IntN(highest-lowest)
		p, err := LockPort(cache, n)
		if err != nil {
			return Port{}, err
		}
		if p.Lock == nil {
			continue
		}
		if err := probePort(n); err != nil {
			p.Lock.Close()
			continue
		}
		return p, nil
	}
	return Port{}, errors.New("found no free port")
}

// ReservePorts reserves n ports, or none.
func ReservePorts(cache string, n int) ([]Port, error) {
	ports := make([]Port, 0, n)
	for range n {
		p, err := ReservePort(cache)
		if err != nil {
			ReleasePorts(ports)
			return nil, err
		}
		ports = append(ports, p)
	}
	return ports, nil
}

// ReleasePorts lets go of ports here; a server that inherited their locks keeps them.
func ReleasePorts(ports []Port) {
	for _, p := range ports {
		if p.Lock != nil {
			p.Lock.Close()
		}
	}
}

// PortLocks returns the files that a server must inherit to keep its ports.
func PortLocks(ports []Port) []*os.File {
	var files []*os.File
	for _, p := range ports {
		files = append(files, p.Lock)
	}
	return files
}

// FixedPort takes the port the user asked for.
func FixedPort(cache string, n int, flag string) (Port, error) {
	if err := probePort(n); err != nil {
		holder := "another process"
		if h := portHolder(n); h != "" {
			holder = h
		}
		return Port{}, fmt.Errorf("port %d is in use by %s: end it or choose another port with %s", n, holder, flag)
	}
	p, err := LockPort(cache, n)
	if err == nil && p.Lock == nil {
		err = fmt.Errorf("port %d is about to be used by another stack: choose another port with %s", n, flag)
	}
	return p, err
}

// LockPort returns a port without lock when someone else holds it.
func LockPort(cache string, n int) (Port, error) {
	dir := filepath.Join(cache, "ports")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return Port{}, err
	}
	f, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(n)), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return Port{}, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return Port{}, nil
		}
		return Port{}, err
	}
	return Port{Number: n, Lock: f}, nil
}

func probePort(n int) error {
	l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(n))
	if err != nil {
		return err
	}
	return l.Close()
}

// EphemeralStart is the first port that the kernel may give to outgoing connections.
func EphemeralStart() int {
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
