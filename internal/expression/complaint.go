package expression

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
)

// maxComplaints bounds the faults told of one expression: those behind the first ones mostly follow
// from them.
const maxComplaints = 3

// complaints says what is wrong with an expression in one line: the place and the fault. The
// compiler's own text repeats the source with a mark below it, and lists each token of the language
// that could have come.
func complaints(env *cel.Env, source string, errs []*cel.Error) string {
	var texts []string
	for _, err := range errs {
		text := complaint(env, err.Message)
		switch line, column := err.Location.Line(), err.Location.Column()+1; {
		case line < 1 || column < 1: // it is of the whole
		case strings.Contains(strings.TrimRight(source, "\n"), "\n"):
			text = fmt.Sprintf("line %d, column %d: %s", line, column, text)
		default:
			text = fmt.Sprintf("column %d: %s", column, text)
		}
		if !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	if more := len(texts) - maxComplaints; more > 0 {
		texts = append(texts[:maxComplaints], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, "; ")
}

func complaint(env *cel.Env, message string) string {
	undeclared := regexp.MustCompile(`^undeclared reference to '([^']*)'`)
	unexpected := regexp.MustCompile(
		`^Syntax error: (?:token recognition error at:|extraneous input|mismatched input|no viable alternative at input) '(.*)'(?: expecting .*)?$`)
	message, _, _ = strings.Cut(message, "\n")
	if m := undeclared.FindStringSubmatch(message); m != nil {
		var known []string
		for _, v := range env.Variables() {
			if !v.Type().IsExactType(cel.TypeType) && !strings.Contains(v.Name(), ".") { // not the names of types
				known = append(known, v.Name())
			}
		}
		slices.Sort(known)
		return fmt.Sprintf("there is no %s; the variables are %s", m[1], strings.Join(slices.Compact(known), ", "))
	}
	if strings.Contains(message, "'<EOF>'") && strings.HasPrefix(message, "Syntax error") {
		return "it ends too early"
	}
	if m := unexpected.FindStringSubmatch(message); m != nil {
		message = "unexpected " + strings.TrimSpace(m[1])
		if strings.TrimSpace(m[1]) == "=" {
			message += " (equal is ==)"
		}
	}
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "") + "..."
	}
	return message
}
