package stack

import (
	"crypto/x509"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
)

// RedisSecurity is how to reach a Redis that [Secured] gave a listener with encryption.
type RedisSecurity struct {
	// TLS is the address of the listener. It takes clients with and without a certificate; Conf
	// with "tls-auth-clients": "yes" has it want one.
	TLS string
	// CAFile has signed the server's certificate, for 127.0.0.1 and localhost, and the one of
	// clients that CertFile and KeyFile hold. All are PEM.
	CAFile, CertFile, KeyFile string
}

// Security returns how to reach a private Redis with encryption. [Secured] must have been among its
// options.
func (s *RedisServer) Security() RedisSecurity { return s.security }

func (n *redisNode) security() RedisSecurity {
	if !n.secured {
		return RedisSecurity{}
	}
	return RedisSecurity{
		TLS:      net.JoinHostPort("127.0.0.1", strconv.Itoa(n.ports[1].Number)),
		CAFile:   filepath.Join(n.dir, "ca.pem"),
		CertFile: filepath.Join(n.dir, "client.pem"),
		KeyFile:  filepath.Join(n.dir, "client-key.pem"),
	}
}

// secure makes an authority and what it has signed, and adds the listener to conf.
func (n *redisNode) secure(conf map[string]string) error {
	k := n.security()
	ca, err := newAuthority()
	if err != nil {
		return err
	}
	server, serverKey, err := ca.issue("redis", x509.ExtKeyUsageServerAuth)
	if err != nil {
		return err
	}
	client, clientKey, err := ca.issue("aviary", x509.ExtKeyUsageClientAuth)
	if err != nil {
		return err
	}
	certFile, keyFile := filepath.Join(n.dir, "server.pem"), filepath.Join(n.dir, "server-key.pem")
	for path, data := range map[string][]byte{
		k.CAFile: ca.pem, k.CertFile: client, k.KeyFile: clientKey, certFile: server, keyFile: serverKey,
	} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			return err
		}
	}
	maps.Copy(conf, map[string]string{
		"tls-port":         strconv.Itoa(n.ports[1].Number),
		"tls-cert-file":    certFile,
		"tls-key-file":     keyFile,
		"tls-ca-cert-file": k.CAFile,
		"tls-auth-clients": "optional",
	})
	return nil
}
