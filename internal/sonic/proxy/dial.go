package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// dial connects to Redis, logs in, and returns a socket for the event loop, and what it leads to.
func (p *Proxy) dial(ctx context.Context, db, proto int) (fd int, to place, err error) {
	cfg := &p.cfg.Backend
	ctx, cancel := context.WithTimeout(ctx, cfg.DialTimeout)
	defer cancel()
	to = place{address: cfg.Address, told: p.primary.Load()}
	if cfg.Resolve != nil {
		if to.address, err = cfg.Resolve(ctx); err != nil {
			return -1, to, fmt.Errorf("cannot tell where Redis is: %w", err)
		}
	}
	network := "tcp"
	if strings.HasPrefix(to.address, "/") {
		network = "unix"
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, network, to.address)
	if err != nil {
		return -1, to, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	var secured *tls.Conn
	talk := conn
	if cfg.TLS != nil {
		conf := cfg.TLS.Clone()
		if conf.ServerName == "" {
			conf.ServerName, _, _ = net.SplitHostPort(to.address)
		}
		secured = tls.Client(conn, conf)
		talk = secured
	}
	if to.server, err = p.handshake(talk, db, proto); err != nil {
		stop()
		_ = conn.Close()
		return -1, to, err
	}
	if !stop() {
		_ = conn.Close()
		return -1, to, ctx.Err()
	}
	if secured == nil {
		fd, err = takeSocket(conn)
	} else {
		fd, err = p.relayTLS(secured)
	}
	return fd, to, err
}

// errReplica is what keeps a connection from a Redis that follows another one: it takes no writes.
var errReplica = errors.New("this Redis is a replica")

// handshake logs in and selects, and returns the server's run_id. It reads no byte beyond the replies, as nothing else was asked for.
func (p *Proxy) handshake(conn net.Conn, db, proto int) (server string, err error) {
	cfg := &p.cfg.Backend
	var out []byte
	ask := [][]string{}
	if cfg.Password != "" {
		auth := []string{"AUTH", cfg.Password}
		if cfg.Username != "" {
			auth = []string{"AUTH", cfg.Username, cfg.Password}
		}
		ask = append(ask, auth)
	}
	ask = append(ask,
		[]string{"INFO", "server"},
		[]string{"ROLE"},
		[]string{"CONFIG", "GET", "databases", "proto-max-bulk-len", "client-query-buffer-limit"},
		[]string{"HELLO", strconv.Itoa(proto)},
		[]string{"CLIENT", "SETNAME", "sonic"},
		[]string{"SELECT", strconv.Itoa(db)},
	)
	for _, words := range ask {
		out = resp.AppendCommand(out, words...)
	}
	if _, err := conn.Write(out); err != nil {
		return "", err
	}
	in := bufio.NewReader(conn)
	for _, words := range ask {
		reply, err := resp.ReadReply(in)
		if err != nil {
			return "", fmt.Errorf("no reply to %s: %w", words[0], err)
		}
		if reply[0] == '-' && words[0] != "CONFIG" { // an ACL may forbid that: Redis' default is assumed then
			return "", fmt.Errorf("redis refuses %s: %s", words[0], resp.Text(reply))
		}
		switch words[0] {
		case "INFO":
			server = p.noteInfo(string(resp.Text(reply)))
		case "ROLE":
			if role := firstWord(reply); string(role) != "master" {
				return "", fmt.Errorf("%w: its role is %s", errReplica, role)
			}
		case "CONFIG":
			p.noteConfig(reply)
		}
	}
	if in.Buffered() > 0 {
		return "", errors.New("redis says more than it was asked")
	}
	return server, nil
}

// queryRest is what may stand in Redis' query buffer besides the longest argument: it ends a connection whose buffer is larger than its bound.
const queryRest = 64 << 10

func (p *Proxy) noteConfig(reply []byte) {
	settings, err := resp.Elements(reply)
	if err != nil {
		return
	}
	bulk, query := p.longest.Load(), p.query.Load()
	for i := 0; i+1 < len(settings); i += 2 {
		n, ok := resp.ParseInt(resp.Text(settings[i+1]))
		switch name := string(resp.Text(settings[i])); {
		case !ok:
		case name == "databases":
			p.databases.Store(n)
		case name == "proto-max-bulk-len":
			bulk = n
		case name == "client-query-buffer-limit":
			query = n
		}
	}
	p.query.Store(query)
	p.longest.Store(min(bulk, query-queryRest))
}

// noteInfo keeps the version, and returns the run_id, which each process of Redis has its own of.
func (p *Proxy) noteInfo(info string) (server string) {
	for line := range strings.Lines(info) {
		switch name, value, _ := strings.Cut(strings.TrimSpace(line), ":"); name {
		case "redis_version":
			p.version.Store(&value)
		case "run_id":
			server = value
		}
	}
	return server
}
