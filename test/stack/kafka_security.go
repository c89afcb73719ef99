package stack

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

const (
	kafkaUser     = "aviary"
	kafkaPassword = "aviary-secret"
)

// KafkaSecurity is how to reach a Kafka that [Secured] gave listeners with authentication and
// encryption.
type KafkaSecurity struct {
	// SASL is the address of a listener without encryption that takes User and Password with PLAIN,
	// SCRAM-SHA-256 and SCRAM-SHA-512, and any unsigned token that has not expired with
	// OAUTHBEARER.
	SASL string
	// TLS is the address of a listener with encryption, MTLS of one that also wants a certificate
	// from its clients.
	TLS, MTLS string
	// User and Password are the same for all mechanisms that want them.
	User, Password string
	// CAFile has signed the broker's certificate, for 127.0.0.1 and localhost, and the one of
	// clients that CertFile and KeyFile hold. All are PEM.
	CAFile, CertFile, KeyFile string
}

// Secured adds to a Kafka the listeners that [KafkaSecurity] describes, to a Redis the one of
// [RedisSecurity].
func Secured() Option {
	return func(o *options) { o.secured = true }
}

func (b *kafkaBroker) security() KafkaSecurity {
	return KafkaSecurity{
		SASL: b.address(kafkaSASL), TLS: b.address(kafkaTLS), MTLS: b.address(kafkaMTLS),
		User: kafkaUser, Password: kafkaPassword,
		CAFile:   filepath.Join(b.dir, "ca.pem"),
		CertFile: filepath.Join(b.dir, "client.pem"),
		KeyFile:  filepath.Join(b.dir, "client-key.pem"),
	}
}

func (k KafkaSecurity) properties() map[string]string {
	const (
		plain = "org.apache.kafka.common.security.plain.PlainLoginModule"
		scram = "org.apache.kafka.common.security.scram.ScramLoginModule"
		oauth = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
	)
	return map[string]string{
		"listener.name.sasl.sasl.enabled.mechanisms":        "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
		"listener.name.sasl.plain.sasl.jaas.config":         plain + ` required user_` + k.User + `="` + k.Password + `";`,
		"listener.name.sasl.scram-sha-256.sasl.jaas.config": scram + " required;",
		"listener.name.sasl.scram-sha-512.sasl.jaas.config": scram + " required;",
		"listener.name.sasl.oauthbearer.sasl.jaas.config":   oauth + ` required unsecuredLoginStringClaim_sub="` + k.User + `";`,
		"listener.name.mtls.ssl.client.auth":                "required",
		"ssl.keystore.type":                                 "PEM",
		"ssl.keystore.location":                             filepath.Join(filepath.Dir(k.CAFile), "broker.pem"),
		"ssl.truststore.type":                               "PEM",
		"ssl.truststore.location":                           k.CAFile,
	}
}

// prepare makes an authority and what it has signed, once: clients keep their files when the broker
// starts again.
func (k KafkaSecurity) prepare(dir string) error {
	if _, err := os.Stat(k.KeyFile); err == nil {
		return nil
	}
	ca, err := newAuthority()
	if err != nil {
		return err
	}
	broker, brokerKey, err := ca.issue("broker", x509.ExtKeyUsageServerAuth)
	if err != nil {
		return err
	}
	client, clientKey, err := ca.issue(k.User, x509.ExtKeyUsageClientAuth)
	if err != nil {
		return err
	}
	for _, file := range []struct {
		path string
		data []byte
	}{
		{k.CAFile, ca.pem},
		{filepath.Join(dir, "broker.pem"), append(brokerKey, broker...)},
		{k.CertFile, client},
		{k.KeyFile, clientKey},
	} {
		if err := os.WriteFile(file.path, file.data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// An authority signs certificates that live as long as a test may.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := certificate("aviary test authority")
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &authority{cert: cert, key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}, err
}

// issue returns a certificate and its key as PEM.
func (a *authority) issue(name string, usage x509.ExtKeyUsage) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := certificate(name)
	template.KeyUsage, template.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{usage}
	template.IPAddresses, template.DNSNames = []net.IP{net.IPv4(127, 0, 0, 1)}, []string{"localhost"}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &private.PublicKey, a.key)
	// Kafka reads PKCS #8 only.
	pkcs8, err2 := x509.MarshalPKCS8PrivateKey(private)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), errors.Join(err, err2)
}

func certificate(name string) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.Add(30 * 24 * time.Hour),
	}
}
