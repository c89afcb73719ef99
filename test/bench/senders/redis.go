package senders

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"

	"github.com/aviaryhq/aviary/test/bench/measure"
)

// RedisKeys is the number of keys of the loads.
const RedisKeys = 100_000

// Client returns a client that sends no command twice. Nutcracker does not support it: it closes a
// connection that begins with HELLO.
func Client(address string) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: address, Protocol: 2, DisableIdentity: true, MaxRetries: -1, ReadTimeout: time.Minute, PoolSize: 100,
	})
}

// redisValue returns a value of 64 bytes. Half of it is random, so that it compresses about as well
// as JSON does.
func redisValue() string {
	value, r := bytes.Repeat([]byte{'x'}, 64), rand.New(rand.NewPCG(1, 64))
	for i := 0; i < len(value); i += 2 {
		value[i] = byte(r.Uint32())
	}
	return string(value)
}

// RedisBenchmark sends p.Count commands with redis-benchmark, in pipelines of p.Batch.
func RedisBenchmark(ctx context.Context, p Load, m *measure.Meter) error {
	_, port, err := net.SplitHostPort(p.URL)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "redis-benchmark", "-p", port, "-c", strconv.Itoa(p.Callers), "-P", strconv.Itoa(p.Batch),
		"-d", strconv.Itoa(len(redisValue())), "-r", strconv.Itoa(RedisKeys), "-n", strconv.Itoa(p.Count), "-t", p.Command, "--csv")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("redis-benchmark: %w: %s", err, out)
	}
	var rate, average, least, p95 float64
	row := out[bytes.LastIndexByte(bytes.TrimSpace(out), '\n')+1:] // it follows the names of the columns
	if _, err := fmt.Fscanf(bytes.NewReader(row), `"`+strings.ToUpper(p.Command)+`","%g","%g","%g","%g","%g","%g"`,
		&rate, &average, &least, &m.Outcome.P50, &p95, &m.Outcome.P99); err != nil {
		return fmt.Errorf("redis-benchmark printed %q: %w", out, err)
	}
	m.Outcome.Messages, m.Outcome.Seconds = p.Count, float64(p.Count)/rate
	return nil
}

// RedisPaced sends p.Rate commands a second, one at a time, over p.Callers connections in turn. It
// times each command from when it was due or, if that is later, from when it was sent. So a slow
// reply counts for the commands that wait for it, and a late timer does not count.
//
// Its sockets block, and it has a thread for itself: Go's poller and scheduler, with timers of a
// millisecond, would be most of the measured time.
func RedisPaced(ctx context.Context, p Load, m *measure.Meter) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// Without this, nanosleep may end 50,000 ns late.
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		return err
	}
	var conns []*os.File
	for range p.Callers {
		conn, err := dialBlocking(p.URL)
		if err != nil {
			return err
		}
		defer conn.Close()
		conns = append(conns, conn)
	}
	value := redisValue()
	call := func(n int) error {
		const keys = 1024
		command := []string{p.Command, fmt.Sprintf("key:%012d", n%keys*RedisKeys/keys)}
		if p.Command == "set" {
			command = append(command, value)
		}
		return Call(conns[n%len(conns)], command...)
	}
	for n := range conns {
		if err := call(n); err != nil {
			return err
		}
	}
	if err := m.Start(); err != nil {
		return err
	}
	took := make([]time.Duration, 0, int(float64(p.Rate)*p.Seconds))
	due, ended := time.Now(), time.Time{}
	for n := 0; n < cap(took) && ctx.Err() == nil; n++ {
		due = due.Add(time.Second / time.Duration(p.Rate))
		began := due
		if ended.Before(due) { // else it had to wait for the reply before it
			sleep := unix.NsecToTimespec(max(0, time.Until(due)).Nanoseconds())
			_ = unix.Nanosleep(&sleep, nil) // a signal may end it early
			began = time.Now()
		}
		if err := call(n); err != nil {
			return err
		}
		ended = time.Now()
		took = append(took, ended.Sub(began))
	}
	m.Stop(len(took))
	m.Latencies(took)
	return ctx.Err()
}

// dialBlocking opens a connection whose reads and writes block the thread.
func dialBlocking(address string) (*os.File, error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	err = errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1),
		unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}))
	return os.NewFile(uintptr(fd), address), err
}

// Call sends a command and reads its reply: a line, or a short string.
func Call(conn io.ReadWriter, command ...string) error {
	request := "*" + strconv.Itoa(len(command)) + "\r\n"
	for _, word := range command {
		request += "$" + strconv.Itoa(len(word)) + "\r\n" + word + "\r\n"
	}
	if _, err := io.WriteString(conn, request); err != nil {
		return err
	}
	in := bufio.NewReaderSize(conn, 128)
	line, err := in.ReadString('\n')
	switch {
	case err != nil:
		return err
	case line[0] == '-':
		return fmt.Errorf("reply %q", line)
	case line[0] == '$' && line[1] != '-': // the key exists
		n, err := strconv.Atoi(strings.TrimSpace(line[1:]))
		if err != nil {
			return err
		}
		_, err = in.Discard(n + 2)
		return err
	}
	return nil
}
