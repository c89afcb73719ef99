package resp

import (
	"bytes"
	"math"
)

const (
	// maxLine is the maximum length of an inline command, and of a line that contains a length.
	// Redis calls it PROTO_INLINE_MAX_SIZE.
	maxLine = 64 << 10
	// keptArguments is for how many arguments a parser keeps memory between commands.
	keptArguments = 256
)

// Limits of one request.
type Limits struct {
	Bulk      int64 // maximum length of an argument, in bytes
	Arguments int64 // maximum number of arguments
	Request   int64 // maximum length of a request with its framing, in bytes
	// Unauthenticated selects the error texts that Redis uses before AUTH.
	Unauthenticated bool
}

// Arg is the position of an argument in a request, without its framing.
type Arg struct{ Start, End int }

// ProtocolError is an error of a client that ends its connection. Its text is the same as in Redis.
type ProtocolError string

func (e ProtocolError) Error() string { return "ERR Protocol error: " + string(e) }

// ErrTooLong is the error of a request that is too long. The connection ends without an error
// reply, as in Redis when the query buffer is full.
const ErrTooLong = ProtocolError("too long a request")

// Parser reads requests. It does not parse the beginning of an incomplete request again. The zero
// value is ready to use. It is not safe for concurrent use.
type Parser struct {
	// Args are the arguments of the last request, as positions in the result of Raw. They are valid
	// until the next call of Next.
	Args []Arg

	pos      int   // how much of the request has been parsed
	multi    int64 // number of arguments left
	bulk     int64 // length of the present argument, -1 before it is known
	begun    bool  // the number of arguments is known
	inline   bool  // the last request was an inline command
	encoded  []byte
	received int // length of the last request
}

// Next reads one request from the beginning of b. n is its length, or 0 if b does not contain all
// of it: then call Next again with the same bytes followed by more. A request without arguments (an
// empty line, "*0") has n > 0 and no Args; Redis ignores it. After an error the connection cannot
// be used any more.
func (p *Parser) Next(b []byte, limits *Limits) (n int, err error) {
	if n, err = p.next(b, limits); err != nil {
		p.begun = false
	}
	return n, err
}

func (p *Parser) next(b []byte, limits *Limits) (n int, err error) {
	if !p.begun {
		p.Args = p.Args[:0]
		p.pos, p.bulk, p.inline = 0, -1, false
		if len(b) == 0 {
			return 0, nil
		}
		if b[0] != '*' {
			return p.nextInline(b)
		}
		text, next := line(b)
		if next == 0 {
			return 0, p.unfinished(b, "too big mbulk count string")
		}
		count, ok := ParseInt(text[1:])
		switch {
		case !ok || count > math.MaxInt32 || count > limits.Arguments && !limits.Unauthenticated:
			return 0, ProtocolError("invalid multibulk length")
		case limits.Unauthenticated && count > limits.Arguments:
			return 0, ProtocolError("unauthenticated multibulk length")
		case count <= 0:
			p.received = next
			return next, nil
		}
		p.multi, p.pos, p.begun = count, next, true
	}
	for p.multi > 0 {
		if p.bulk < 0 {
			rest := b[p.pos:]
			text, next := line(rest)
			if next == 0 {
				return 0, p.unfinished(rest, "too big bulk count string")
			}
			if len(text) == 0 || text[0] != '$' {
				return 0, ProtocolError("expected '$', got '" + string(printable(rest[0])) + "'")
			}
			size, ok := ParseInt(text[1:])
			switch {
			case !ok || size < 0 || size > limits.Bulk && !limits.Unauthenticated:
				return 0, ProtocolError("invalid bulk length")
			case limits.Unauthenticated && size > limits.Bulk:
				return 0, ProtocolError("unauthenticated bulk length")
			case int64(p.pos+next)+size > limits.Request:
				return 0, ErrTooLong
			}
			p.bulk, p.pos = size, p.pos+next
		}
		if int64(len(b)-p.pos) < p.bulk+2 {
			return 0, nil
		}
		end := p.pos + int(p.bulk)
		p.Args = append(p.Args, Arg{Start: p.pos, End: end})
		p.pos, p.bulk = end+2, -1
		p.multi--
	}
	p.begun = false
	p.received = p.pos
	return p.pos, nil
}

// Missing returns how many bytes of the present argument are missing, if Next got have bytes; 0 if
// unknown. It helps to choose the size of a buffer.
func (p *Parser) Missing(have int) int {
	if !p.begun || p.bulk < 0 {
		return 0
	}
	return max(0, p.pos+int(p.bulk)+2-have)
}

// Partial reports whether the parser is within an incomplete request.
func (p *Parser) Partial() bool { return p.begun }

// Reset drops an incomplete request, and releases memory that an unusually large one took.
func (p *Parser) Reset() {
	p.begun, p.multi, p.pos, p.bulk = false, 0, 0, -1
	if cap(p.Args) > keptArguments {
		p.Args = nil
	}
	if cap(p.encoded) > maxLine {
		p.encoded = nil
	}
}

// Raw returns the last request as an array of bulk strings: the beginning of b, or an inline
// command converted to this form. b must be the argument of Next. The result is valid until the
// next call of Next.
func (p *Parser) Raw(b []byte) []byte {
	if p.inline {
		return p.encoded
	}
	return b[:p.received]
}

func (p *Parser) unfinished(rest []byte, tooLong string) error {
	if len(rest) > maxLine {
		return ProtocolError(tooLong)
	}
	return nil
}

// printable returns a byte as Redis prints it in an error, where line breaks become spaces.
func printable(c byte) []byte {
	if c == '\r' || c == '\n' {
		c = ' '
	}
	return []byte{c}
}

// nextInline reads an inline command: a line of words.
func (p *Parser) nextInline(b []byte) (int, error) {
	i := bytes.IndexByte(b, '\n')
	if i < 0 {
		if len(b) > maxLine {
			return 0, ProtocolError("too big inline request")
		}
		return 0, nil
	}
	text := b[:i]
	if i > 0 && text[i-1] == '\r' {
		text = text[:i-1]
	}
	p.inline, p.received = true, i+1
	words, ok := Words(text)
	if !ok {
		return 0, ProtocolError("unbalanced quotes in request")
	}
	p.encoded = AppendHeader(p.encoded[:0], '*', len(words))
	for _, word := range words {
		p.encoded = AppendHeader(p.encoded, '$', len(word))
		start := len(p.encoded)
		p.encoded = append(p.encoded, word...)
		p.Args = append(p.Args, Arg{Start: start, End: len(p.encoded)})
		p.encoded = append(p.encoded, '\r', '\n')
	}
	return i + 1, nil
}
