package clientquirks_test

import (
	"crypto/tls"
	"net"
	"testing"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
)

func TestMemoryOfTheClientIsNotLimited(t *testing.T) {
	var o pulsar.ClientOptions
	clientquirks.SetClientOptions(&o)
	require.Negative(t, o.MemoryLimitBytes, "zero is the client's default")
}

// The client expects from each host of a URL a certificate with the host's name.
func TestCertificateIsForTheHostDialed(t *testing.T) {
	asked := make(chan string, 100)
	l, err := net.Listen("tcp", "localhost:0")
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			server := tls.Server(conn, &tls.Config{GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
				select {
				case asked <- h.ServerName:
				default:
				}
				return nil, net.ErrClosed
			}})
			_ = server.Handshake()
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	c := connect(t, "pulsar+ssl://first.invalid,localhost:"+port, func(o *pulsar.ClientOptions) { o.OperationTimeout = 1 })
	for name := ""; name == ""; {
		_, _ = c.TopicPartitions(topic)
		select {
		case name = <-asked:
			require.Equal(t, "localhost", name)
		default:
		}
	}
}
