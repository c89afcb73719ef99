
do -- what is local here is of this file alone: a function of Lua has at most 200 locals

-- Several writes in one call. Of what a short write costs Redis, a call and an entry of the outbox are the most.

-- Commands whose effects go into one entry, under one version: those on strings, which make S and I. To have them at one
-- moment is what MSET is, too.
local JOINED = {}
each({'SET', 'SETEX', 'PSETEX', 'SETNX', 'INCR', 'DECR', 'INCRBY', 'DECRBY', 'INCRBYFLOAT'}, function(command)
	JOINED[command] = true
end)

-- Commands whose effects have an entry each.
local SINGLE = {}
each({
	'HSET', 'HMSET', 'HSETNX', 'HINCRBY', 'HINCRBYFLOAT', 'SADD', 'ZADD', 'ZINCRBY', 'LPUSH', 'RPUSH', 'LPUSHX', 'RPUSHX',
}, function(command) SINGLE[command] = true end)

-- HEADS[text] is what the head of a write says. There are few different ones.
local HEADS = {}

local function head_of(text)
	local command, n = string.match(text, '^(%u+) (%d)$')
	if not command or not JOINED[command] and not SINGLE[command] then return nil end
	HEADS[text] = {
		command = command, n = tonumber(n), body = bodies[command], special = specials[command], joined = JOINED[command],
		plain = text == 'SET 2',
	}
	return HEADS[text]
end

-- sonic_many mode, and of each write a head and the arguments. The head is the command and the number of its arguments, one digit. The
-- mode has no t and no p. In a cluster each head is followed by the stream of the write's slot. It returns the list of replies. An error of one write is its reply; the others run. All these commands need
-- memory: when there is none, Redis refuses the call as it would refuse each of them.
redis.register_function{
	function_name = 'sonic_many', flags = {'allow-cross-slot-keys'},
	callback = function(keys, args)
		if not ready then return NOT_READY end
		if not concat then bind() end
		local out, mode = keys[1], args[1]
		outbox = out
		local db, resp3, _ = '0', false, nil
		if mode ~= '0' then
			db, _, _, resp3 = mode_of(mode)
			if db ~= '0' then
				local reply = try('SELECT', db)
				if failed(reply) then return reply end
			end
		end
		write_tx = nil
		local refusal = refuse_or_drop()
		if refusal then return refusal end
		local replies, count = {}, 0
		local parts, n = {}, 0 -- effects that have no entry yet
		local notes, noted = {}, 0
		local function append_joined()
			if n > 0 and not alone then append(out, db, nil, concat(parts), notes) end
			parts, n, notes, noted = {}, 0, {}, 0
		end
		local i, last = 2, #args
		local moving
		while i <= last do
			local head = HEADS[args[i]] or head_of(args[i])
			if shards.clustered and head then
				i = i + 1
				if not args[i] then
					head = nil
				elseif args[i] ~= out or i == 3 then
					append_joined()
					out = args[i]
					moving = shards.use(out)
				end
			end
			local stop = head and i + head.n or last + 1
			if stop > last then
				-- The writes before it are noted below.
				for _ = i, last do
					count = count + 1
					replies[count] = {err = 'SONICARG mode [head argument..]..'}
				end
				break
			end
			local reply, effect, note
			local policy = not moving and head.plain and not alone and policy_of(args[i + 1])
			if policy and policy ~= 'c' then -- as the body of SET does it, with less
				local key, value = args[i + 1], args[i + 2]
				reply = try('SET', key, value)
				if not reply.err then
					effect = string_effect(policy, db, key, value, '')
					if policy == 'l' then
						notes[noted + 1], notes[noted + 2] = key_field(db, key), ''
						noted = noted + 2
					end
				end
			elseif moving then
				reply = moving
			elseif alone and not head.special then
				reply = try(head.command, unpack(args, i + 1, stop))
			else
				if not head.joined then append_joined() end
				local done
				done, reply, effect, note = pcall(head.body, {mode, unpack(args, i + 1, stop)}, db, resp3)
				if not done then -- what it raised is one write's: those before it must be noted all the same
					reply, effect = type(reply) == 'table' and reply or {err = 'ERR ' .. tostring(reply)}, nil
					try('SELECT', db)
				end
			end
			if not effect then
				if failed(reply) then reply = as_client_error(head.command, reply) end
			elseif head.joined then
				n = n + 1
				parts[n] = effect
				if note then
					for j = 1, #note do notes[noted + j] = note[j] end
					noted = noted + #note
				end
			elseif not alone then
				append(out, db, nil, effect, note)
			end
			count = count + 1
			replies[count] = reply
			i = stop + 1
		end
		append_joined()
		return replies
	end,
}

end
