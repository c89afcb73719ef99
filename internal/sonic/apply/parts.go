package apply

import (
	"errors"

	"github.com/aviaryhq/aviary/internal/sonic/message"
)

// maxJoined is how large a message in parts may be: it is in memory until all parts have come. No
// effect of Redis is larger.
const maxJoined = 1 << 30

var (
	errPartsMissing = errors.New("earlier parts of the message are missing")
	errLarge        = errors.New("the parts of the message are larger than 1 GiB")
)

// partJoiner joins the parts of the messages of a topic, which come in order. A message can come twice.
type partJoiner struct {
	begin       int64 // position of the message, less one
	have, parts int
	payload     []byte
}

// add takes a message. ok is false for a part with others behind it. Otherwise add returns the
// payload, which is valid until the next call. The error is errPartsMissing or errLarge.
func (j *partJoiner) add(h *message.Header, payload []byte) (whole []byte, ok bool, err error) {
	if h.Parts <= 1 {
		*j = partJoiner{}
		return payload, true, nil
	}
	if begin := h.Position - int64(h.Part); begin != j.begin || h.Parts != j.parts {
		*j = partJoiner{begin: begin, parts: h.Parts}
	}
	switch {
	case h.Part > j.have+1:
		return nil, false, errPartsMissing
	case h.Part == j.have+1:
		if len(j.payload)+len(payload) > maxJoined {
			return nil, false, errLarge
		}
		j.payload = append(j.payload, payload...)
		j.have++
	}
	return j.payload, h.Part == h.Parts, nil
}
