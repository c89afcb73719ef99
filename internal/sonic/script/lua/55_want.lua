
-- Wants: keys whose state this zone cannot know (see 50_versions.lua). The hash `want` holds those that were
-- not answered: "<zone that is asked> <db>:<key>".

-- ask appends N for key, unless the same was asked and not answered yet. Before sonic_open has run it only
-- notes the want: sonic_open asks then.
local function ask(out, target, policy, db, key)
	go('0')
	local field = target .. ' ' .. db .. ':' .. key
	if call('HSETNX', state(out, 'want'), field, policy) == 0 or not opened then return false end
	append(out, '0', nil, cmsgpack.pack({'N', policy, db, key, target}))
	return true
end

-- ask_again appends N for every want of the hash. Those of zones that are gone go to another one, and are
-- forgotten when there is none.
local function ask_again(out)
	local want = state(out, 'want')
	local all = call('HGETALL', want)
	for i = 1, #all, 2 do
		local target, db, key = string.match(all[i], '^([^ ]*) (%d+):(.*)$')
		if not others[target] then
			call('HDEL', want, all[i])
			target = others[1]
			if target then call('HSET', want, target .. ' ' .. db .. ':' .. key, all[i + 1]) end
		end
		if target then append(out, '0', nil, cmsgpack.pack({'N', all[i + 1], db, key, target})) end
	end
end

-- answer ships the state of key, which another zone wants.
local function answer(out, db, key)
	go(db)
	local effects, notes = state_effects(db, key)
	go('0')
	if effects ~= '' then append(out, '0', nil, effects, notes) end
end
