// Package playing is what the programs for Go's clients have in common. What they are is in
// tests/support/clients/programs.py.
package playing

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"runtime/debug"
	"strings"
	"sync"
	"time"
)

// Patience is how long anything is waited for.
const Patience = 30 * time.Second

// Bootstrap is the address of the broker.
var Bootstrap = os.Args[1]

// Scenario plays on this topic, and panics if something is not as it should be.
type Scenario func(topic string)

// Play plays all scenarios that the command line names, at once: most of the time each of them waits for the broker.
func Play(scenarios map[string]Scenario) {
	prefix := os.Args[2]
	var lines sync.Mutex
	done := make(chan struct{}, len(os.Args))
	for _, name := range os.Args[3:] {
		go func() {
			failure := failureOf(scenarios[name], prefix+"-"+strings.ReplaceAll(name, " ", "-"))
			lines.Lock()
			defer lines.Unlock()
			line, _ := json.Marshal(map[string]any{"scenario": name, "error": failure})
			fmt.Println(string(line))
			done <- struct{}{}
		}()
	}
	deadline := time.After(3 * Patience)
	for range os.Args[3:] {
		select {
		case <-done:
		case <-deadline:
			return
		}
	}
}

func failureOf(scenario Scenario, topic string) (failure *string) {
	defer func() {
		if problem := recover(); problem != nil {
			text := fmt.Sprintf("%v\n%s", problem, debug.Stack())
			failure = &text
		}
	}()
	scenario(topic)
	return nil
}

// Check panics unless both are the same.
func Check(what string, expected, found any) {
	if !reflect.DeepEqual(expected, found) {
		panic(fmt.Sprintf("%s: expected %v, found %v", what, expected, found))
	}
}

// Must panics if there is an error.
func Must(problem error) {
	if problem != nil {
		panic(problem)
	}
}

// Got is the value, unless there is an error.
func Got[T any](value T, problem error) T {
	Must(problem)
	return value
}

// Until waits until the condition holds.
func Until(what string, condition func() bool) {
	for deadline := time.Now().Add(Patience); !condition(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			panic(fmt.Sprintf("not within %v: %s", Patience, what))
		}
	}
}

// Numbers are the values of so many records, wide enough to be worth compressing.
func Numbers(first, count int) (values []string) {
	for number := first; number < first+count; number++ {
		values = append(values, fmt.Sprintf("%040d", number))
	}
	return values
}
