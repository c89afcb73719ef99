// Package expression compiles and evaluates CEL expressions of a configuration. Their input are
// messages of unknown senders: the cost of one evaluation is bounded for every message. The package
// imports nothing of this repository.
package expression

import (
	"fmt"
	"strings"
	_ "time/tzdata" // expressions name time zones, and not every machine or container has their files

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/ext"
)

const (
	// costLimit bounds one evaluation, in CEL's units: about one for each step, and
	// one for each 10 to 64 bytes of text looked at or made (limits.go). It is reached
	// in some tenths of a second.
	costLimit = 1_000_000
	// maxExpression bounds the source of an expression, in code points.
	maxExpression = 16 << 10
	maxNesting    = 100
)

// NewEnv makes an environment with CEL's standard library, the strings and encoders extensions, and
// the variables given.
func NewEnv(variables ...cel.EnvOption) (*cel.Env, error) {
	return cel.NewEnv(append(variables,
		// Versions are pinned: an upgrade of the library does not give an expression another
		// meaning.
		ext.Strings(ext.StringsVersion(5)),
		ext.Encoders(ext.EncodersVersion(1)),
		cel.CrossTypeNumericComparisons(true),
		cel.DefaultUTCTimeZone(true),
		cel.ParserExpressionSizeLimit(maxExpression),
		cel.ParserRecursionLimit(maxNesting),
	)...)
}

// Compile makes a program of an expression whose type is one of those wanted, or dyn, which is
// known when a message has been seen. want names those for people. With no types wanted any will
// do. options are the program's besides, and may lower the bound of its cost.
func Compile(env *cel.Env, source, want string, options []cel.ProgramOption, wanted ...*cel.Type) (cel.Program, error) {
	checked, issues := env.Compile(source)
	if issues.Err() != nil {
		return nil, fmt.Errorf("does not compile: %s", complaints(env, source, issues.Errors()))
	}
	out, fine := checked.OutputType(), len(wanted) == 0 || checked.OutputType().IsExactType(cel.DynType)
	for _, t := range wanted {
		fine = fine || out.IsExactType(t)
	}
	if !fine {
		return nil, fmt.Errorf("must be %s, got an expression of type %s", want, out)
	}
	if err := checkAmplifiers(checked); err != nil {
		return nil, err
	}
	guarded, err := guards(env)
	if err != nil {
		return nil, fmt.Errorf("does not compile: %w", err)
	}
	program, err := env.Program(checked, append([]cel.ProgramOption{
		cel.CostTracking(costs{}), cel.CostTrackerOptions(textCosts()...), cel.CostLimit(costLimit), cel.EvalOptions(cel.OptOptimize), cel.CustomDecorator(guarded),
	}, options...)...)
	if err != nil {
		return nil, fmt.Errorf("does not compile: %w", err)
	}
	return program, nil
}

// checkAmplifiers refuses calls by which a message could make a text as long as the
// product of two of its parts: there is no use for these. And it refuses regular
// expressions that take megabytes as long as there is the program.
func checkAmplifiers(checked *cel.Ast) error {
	var err error
	ast.PostOrderVisit(checked.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() != ast.CallKind {
			return
		}
		call := e.AsCall()
		if args := call.Args(); call.FunctionName() == "matches" && len(args) > 0 && args[len(args)-1].Kind() == ast.LiteralKind {
			if text, ok := args[len(args)-1].AsLiteral().(types.String); ok && err == nil {
				err = checkRegexText(string(text))
			}
		}
		if !call.IsMemberFunction() {
			return
		}
		constant := true
		switch args := call.Args(); call.FunctionName() {
		case "replace":
			constant = len(args) < 2 || args[1].Kind() == ast.LiteralKind
		case "join":
			constant = len(args) < 1 || args[0].Kind() == ast.LiteralKind
		case "format":
			constant = call.Target().Kind() == ast.LiteralKind
		}
		if !constant {
			err = fmt.Errorf("must give %s() a constant text to put in, so that no message can make it too long", call.FunctionName())
		}
	}))
	return err
}

// Evaluate runs a program. activation is a cel.Activation, or a map of variables.
func Evaluate(program cel.Program, activation any) (ref.Val, error) {
	out, _, err := program.Eval(activation)
	if err != nil {
		return nil, err
	}
	if types.IsUnknownOrError(out) {
		return nil, fmt.Errorf("the result is %v", out)
	}
	return out, nil
}

// maxMessage bounds what OneLine returns: a message may repeat a text of the event.
const maxMessage = 400

// OneLine is CEL's message, which has the source and a mark below it, for a log or a
// header.
func OneLine(err error) string {
	text, _, _ := strings.Cut(err.Error(), "\n")
	if len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage], "") + "..."
	}
	return text
}
