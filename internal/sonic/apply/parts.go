package apply

import (
	"errors"

	"github.com/aviaryhq/aviary/internal/sonic/message"
)

// maxJoined is how large a message in parts may be: it is in memory until all parts have come. No
// effect of Redis is larger.
const maxJoined = 1 << 30

var (
	errLacking = errors.New("the parts of the message before this one are missing")
	errLarge   = errors.New("the parts of the message are larger than 1 GiB")
)

// joiner joins the parts of the messages of a topic, which come in order. A message can come twice.
type joiner struct {
	begin       int64 // position of the message, less one
	have, parts int
	payload     []byte
}

// add takes a message. ok is false for a part with others behind it. Otherwise add returns the
// payload, which is valid until the next call. The error is errLacking or errLarge.
func (j *joiner) add(h *message.Header, payload []byte) (whole []byte, ok bool, err error) {
	if h.Parts <= 1 {
		*j = joiner{}
		return payload, true, nil
	}
	if begin := h.Position - int64(h.Part); begin != j.begin || h.Parts != j.parts {
		*j = joiner{begin: begin, parts: h.Parts}
	}
	switch {
	case h.Part > j.have+1:
		return nil, false, errLacking
	case h.Part == j.have+1:
		if len(j.payload)+len(payload) > maxJoined {
			return nil, false, errLarge
		}
		j.payload = append(j.payload, payload...)
		j.have++
	}
	return j.payload, h.Part == h.Parts, nil
}
