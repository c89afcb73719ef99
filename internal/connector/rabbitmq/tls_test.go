package rabbitmq

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/test/stack"
)

// authority signs certificates.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	a.key, a.cert = a.issue(t, name, true)
	return a
}

// issue writes name.pem and name-key.pem.
func (a *authority) issue(t *testing.T, name string, root bool) (*ecdsa.PrivateKey, *x509.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: root, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		DNSNames: []string{"localhost"},
	}
	parent, signer := a.cert, a.key
	if root {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(a.file(name), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(a.file(name+"-key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600))
	return key, cert
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name+".pem") }

func TestTLS(t *testing.T) {
	t.Parallel()
	ours, other := newAuthority(t, "ours"), newAuthority(t, "other")
	ours.issue(t, "server", false)
	ours.issue(t, "client", false)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	require.NoError(t, l.Close())
	b := newBroker(t, stack.PrivateRabbitMQ(t, stack.Conf(map[string]string{
		"listeners.ssl.1": address, "ssl_options.cacertfile": ours.file("ours"), "ssl_options.certfile": ours.file("server"),
		"ssl_options.keyfile": ours.file("server-key"), "ssl_options.verify": "verify_peer", "ssl_options.fail_if_no_peer_cert": "true",
	})))
	q := b.queue(nil)
	good := connector.TLS{CAFile: ours.file("ours"), CertFile: ours.file("client"), KeyFile: ours.file("client-key"), ServerName: "localhost"}
	for name, c := range map[string]struct {
		change func(*connector.TLS)
		want   string
	}{
		"good":              {func(*connector.TLS) {}, "<nil>"},
		"not verified":      {func(c *connector.TLS) { c.CAFile, c.ServerName, c.Insecure = "", "", true }, "<nil>"},
		"unknown authority": {func(c *connector.TLS) { c.CAFile = other.file("other") }, "RabbitMQ at " + address + ": TLS: tls: failed to verify certificate"},
		"wrong name":        {func(c *connector.TLS) { c.ServerName = "elsewhere" }, "TLS: tls: failed to verify certificate"},
		"no certificate":    {func(c *connector.TLS) { c.CertFile, c.KeyFile = "", "" }, "certificate required"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := b.sinkConfig()
			cfg.URL, cfg.TLS = "amqps://"+address+"/", good
			c.change(&cfg.TLS)
			s, r, _ := b.sink(cfg)
			r.await(t, c.want)
			if c.want == "<nil>" {
				require.NoError(t, send(t, s, q, text("x")))
			}
		})
	}
}
