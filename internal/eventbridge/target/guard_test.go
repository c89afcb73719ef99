package target

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
)

func TestGuard(t *testing.T) {
	const kindPrivate, kindLoopback, kindLink, kindMulticast = "a private", "a loopback", "a link-local", "a multicast"
	for _, test := range []struct{ address, kind string }{
		{"8.8.8.8", ""},
		{"1.1.1.1", ""},
		{"172.15.255.255", ""},
		{"172.32.0.0", ""},
		{"100.63.255.255", ""},
		{"100.128.0.0", ""},
		{"11.0.0.0", ""},
		{"223.255.255.255", ""},
		{"2606:4700:4700::1111", ""},
		{"2a00:1450:4001:80b::200e", ""},
		{"0.0.0.0", "an unspecified"},
		{"0.1.2.3", "an unspecified"},
		{"10.0.0.1", kindPrivate},
		{"10.255.255.255", kindPrivate},
		{"100.64.0.1", "carrier's NAT"},
		{"100.127.255.255", "carrier's NAT"},
		{"100.100.100.200", "metadata"},
		{"127.0.0.1", kindLoopback},
		{"127.255.0.3", kindLoopback},
		{"169.254.169.254", "metadata"},
		{"169.254.170.2", "metadata"},
		{"169.254.1.1", kindLink},
		{"168.63.129.16", "metadata"},
		{"172.16.0.1", kindPrivate},
		{"172.31.255.255", kindPrivate},
		{"192.0.0.192", "metadata"},
		{"192.0.0.8", "a reserved"},
		{"192.0.2.1", "documentation"},
		{"192.88.99.1", "a reserved"},
		{"192.168.1.1", kindPrivate},
		{"198.18.0.1", "benchmarks"},
		{"198.19.255.255", "benchmarks"},
		{"198.51.100.7", "documentation"},
		{"203.0.113.7", "documentation"},
		{"224.0.0.1", kindMulticast},
		{"239.255.255.255", kindMulticast},
		{"240.0.0.1", "a reserved"},
		{"255.255.255.255", "the broadcast"},
		{"::", "an unspecified"},
		{"::1", kindLoopback},
		{"::ffff:127.0.0.1", kindLoopback},
		{"::ffff:10.1.2.3", kindPrivate},
		{"::ffff:169.254.169.254", "metadata"},
		{"::ffff:8.8.8.8", ""},
		{"::127.0.0.1", "outside of the public"}, // IPv4-compatible
		{"::8.8.8.8", "outside of the public"},
		{"::ffff:0:127.0.0.1", "outside of the public"}, // IPv4-translated
		{"64:ff9b::8.8.8.8", ""},
		{"64:ff9b::127.0.0.1", "a form of 127.0.0.1, a loopback"},
		{"64:ff9b::169.254.169.254", "a form of 169.254.169.254"},
		{"64:ff9b:1::8.8.8.8", "NAT64"},
		{"2002:7f00:1::", "a form of 127.0.0.1"},
		{"2002:a00:1::1", "a form of 10.0.0.1"},
		{"2002:808:808::1", ""},
		{"2001:0:4136:e378:8000:63bf:3fff:fdd2", "Teredo"},
		{"2001:2::1", "a reserved"},
		{"2001:db8::1", "documentation"},
		{"3fff::1", "documentation"},
		{"2a00:1450::5efe:10.0.0.1", "a form of 10.0.0.1"}, // ISATAP
		{"2a00:1450::200:5efe:192.168.0.1", "a form of 192.168.0.1"},
		{"2a00:1450::5efe:8.8.8.8", ""},
		{"100::1", "a reserved"},
		{"5f00::1", "a reserved"},
		{"4000::1", "outside of the public"},
		{"fc00::1", kindPrivate},
		{"fd12:3456::1", kindPrivate},
		{"fd00:ec2::254", "metadata"},
		{"fd20:ce::254", "metadata"},
		{"fe80::1", kindLink},
		{"fe80::1%eth0", kindLink},
		{"fec0::1", kindPrivate},
		{"ff02::1", kindMulticast},
		{"ff0e::1", kindMulticast},
	} {
		t.Run(test.address, func(t *testing.T) {
			to := netip.AddrPortFrom(netip.MustParseAddr(test.address), 443)
			err := NewGuard(nil, nil).Check(to)
			everything := NewGuard([]netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}, nil)
			require.NoError(t, everything.Check(to))
			if test.kind == "" {
				require.NoError(t, err)
				return
			}
			var refused *RefusedAddress
			require.ErrorAs(t, err, &refused)
			assert.Contains(t, refused.Kind, test.kind)
			assert.Equal(t, netip.MustParseAddr(test.address).String(), refused.Address)
		})
	}
}

func TestGuardAllows(t *testing.T) {
	g := NewGuard([]netip.Prefix{netip.MustParsePrefix("10.1.2.3/16"), netip.MustParsePrefix("fe80::/10")}, []uint16{443, 8443})
	check := func(address string) error { return g.Check(netip.MustParseAddrPort(address)) }
	require.NoError(t, check("10.1.255.1:443"))
	require.NoError(t, check("[::ffff:10.1.0.1]:443"))
	require.NoError(t, check("[64:ff9b::10.1.0.1]:8443"))
	require.NoError(t, check("[fe80::1%eth0]:443"))
	require.NoError(t, check("8.8.8.8:8443"))
	// An IPv6 address is not allowed by the IPv4 address in it where it is special itself.
	require.NoError(t, check("[2002:a01:1::1]:443"))
	require.NoError(t, check("[2a00:1450::5efe:10.1.0.1]:443"))
	require.ErrorContains(t, check("[fd12::5efe:10.1.0.1]:443"), "a private address")
	require.ErrorContains(t, check("[fd00:ec2::5efe:10.1.0.1]:443"), "metadata")
	require.ErrorContains(t, check("[::10.1.0.1]:443"), "outside of the public")
	require.ErrorContains(t, check("10.2.0.1:443"), "10.2.0.1 is a private address")
	require.EqualError(t, check("8.8.8.8:80"), "8.8.8.8:80 is at a port that targets.ports does not contain")
	require.EqualError(t, check("127.0.0.1:443"), "127.0.0.1 is a loopback address; targets.allow does not contain it")
	require.ErrorContains(t, g.Control(context.Background(), "unix", "/run/docker.sock", nil), "no IP address")
}

// TestNamesAreCheckedWhenConnected has a name server that changes its answer between two questions:
// a check of the name before the connection would pass.
func TestNamesAreCheckedWhenConnected(t *testing.T) {
	var reached atomic.Int64
	inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	defer inside.Close()
	port := inside.Listener.Addr().(*net.TCPAddr).Port

	answers := newNames(t)
	answers.set("127.0.0.1")
	d := newHarness(t, func(o *Options) {
		o.Config.Allow = []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}
		o.Resolver = answers.resolver()
	})
	target := d.webhook("http://rebinding.example:"+strconv.Itoa(port)+"/x", nil)
	r := deliver(t, target, d.event("1"))
	assert.Equal(t, Retry, r.Verdict)
	assert.Equal(t, ReasonAddress, r.Reason)
	assert.True(t, r.Unavailable)
	require.ErrorContains(t, r.Err, "127.0.0.1 is a loopback address")
	assert.Zero(t, reached.Load())

	// The same name, once it leads to an allowed address, and back.
	allowed := newServerAt(t, "127.0.0.2:"+strconv.Itoa(port))
	answers.set("127.0.0.2")
	r = deliver(t, target, d.event("2"))
	require.Equal(t, Delivered, r.Verdict, "%v", r.Err)
	assert.Equal(t, int64(1), allowed.count.Load())
	allowed.CloseClientConnections()
	answers.set("127.0.0.1")
	r = deliver(t, target, d.event("3"))
	assert.Equal(t, ReasonAddress, r.Reason, "%v", r.Err)
	assert.Zero(t, reached.Load())
	assert.GreaterOrEqual(t, answers.asked.Load(), int64(3))
}

// names is a name server that answers each question with one address.
type names struct {
	t       *testing.T
	address atomic.Pointer[netip.Addr]
	asked   atomic.Int64
	conn    net.PacketConn
}

func newNames(t *testing.T) *names {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	n := &names{t: t, conn: conn}
	served := make(chan struct{})
	go func() {
		defer close(served)
		n.serve()
	}()
	t.Cleanup(func() {
		_ = conn.Close()
		<-served
	})
	return n
}

func (n *names) set(address string) {
	a := netip.MustParseAddr(address)
	n.address.Store(&a)
}

func (n *names) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", n.conn.LocalAddr().String())
	}}
}

func (n *names) serve() {
	buffer := make([]byte, 1500)
	for {
		size, from, err := n.conn.ReadFrom(buffer)
		if err != nil {
			return
		}
		var question dnsmessage.Message
		if question.Unpack(buffer[:size]) != nil || len(question.Questions) != 1 {
			continue
		}
		answer := dnsmessage.Message{
			Header:    dnsmessage.Header{ID: question.ID, Response: true, Authoritative: true},
			Questions: question.Questions,
		}
		if q := question.Questions[0]; q.Type == dnsmessage.TypeA {
			n.asked.Add(1)
			answer.Answers = []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 0},
				Body:   &dnsmessage.AResource{A: n.address.Load().As4()},
			}}
		}
		if packed, err := answer.Pack(); err == nil {
			_, _ = n.conn.WriteTo(packed, from)
		}
	}
}
